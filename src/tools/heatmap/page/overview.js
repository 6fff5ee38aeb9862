
// --- All layers and heads ---

// Pictures are drawn when they come into view.
const pictures = new IntersectionObserver(entries => {
  const colors = colorsOf(-1);
  for (const { isIntersecting, target } of entries) {
    if (!isIntersecting || !target.isConnected) continue;
    pictures.unobserve(target);
    drawThumbnail(target, +target.dataset.layer, +target.dataset.head, colors);
  }
}, { rootMargin: "300px" });

function openHead(layer, head) {
  chooseMode(false);
  state.heads = new Map([[head, 0]]);
  chooseLayer(layer);
}

function makeOverview() {
  const { layers, heads } = attention();
  const table = byId("overview").querySelector("table");
  pictures.disconnect();
  table.replaceChildren();
  const top = make("tr", table);
  make("td", top);
  for (const head of heads) make("th", top, head).scope = "col";
  layers.forEach((each, layer) => {
    const row = make("tr", table);
    make("th", row, each.layer).scope = "row";
    heads.forEach((number, head) => {
      const button = make("button", make("td", row));
      button.type = "button";
      button.setAttribute("aria-label", `layer ${each.layer}, head ${number}`);
      button.addEventListener("click", () => openHead(layer, head));
      const canvas = make("canvas", button);
      canvas.setAttribute("aria-hidden", true);
      Object.assign(canvas.dataset, { layer, head });
      pictures.observe(canvas);
    });
  });
}

const overviewButtons = () => [...document.querySelectorAll("#overview button")];

// Tab reaches the picture of the head that was opened last, arrow keys the others.
function markOverview() {
  const [head] = state.heads.keys();
  const current = state.layer * attention().heads.length + head;
  overviewButtons().forEach((button, i) => {
    button.setAttribute("aria-current", i === current);
    button.tabIndex = i === current ? 0 : -1;
  });
}

function moveInOverview(key) {
  const buttons = overviewButtons();
  const columns = attention().heads.length;
  const steps = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -columns, ArrowDown: columns };
  const from = buttons.indexOf(document.activeElement);
  const to = from < 0 ? buttons.findIndex(each => each.tabIndex === 0) : from + steps[key];
  if (to in buttons) buttons[to].focus();
}
