
// --- Tokens, and lines between them ---

const ROW = 22; // the height of a token
const SVG_WIDTH = 170;
const MOST_LINES = 4000;
const LEAST_WEIGHT = .01; // of a line

// Labels may be of scripts that are written from right to left.
function makeToken(tag, parent, label) {
  const element = make(tag, parent);
  make("bdi", element, label);
  element.title = label;
  return element;
}

function makeQuery(label, i) {
  const button = makeToken("button", make("li", byId("queries")), label);
  button.type = "button";
  button.tabIndex = i === 0 ? 0 : -1;
  button.addEventListener("pointerenter", () => look(i, -1));
  button.addEventListener("pointerleave", () => look(state.kept, -1));
  button.addEventListener("focus", () => {
    for (const each of document.querySelectorAll("#queries button")) each.tabIndex = -1;
    button.tabIndex = 0;
    if (button.matches(":focus-visible")) look(i, -1);
  });
  button.addEventListener("click", () => {
    state.kept = state.kept === i ? -1 : i;
    look(i, -1);
    drawNumbers();
  });
}

function makeKey(label, i) {
  const item = make("li", byId("keys"));
  makeToken("span", item, label).className = "token";
  item.addEventListener("pointerenter", () => look(state.kept, i));
  item.addEventListener("pointerleave", () => look(state.kept, -1));
}

function makeTokens() {
  for (const id of ["queries", "keys"]) byId(id).replaceChildren();
  attention().queries.forEach(makeQuery);
  attention().keys.forEach(makeKey);
}

// The strongest lines of the shown heads: of the query or key that is looked at, or of all.
function linesToDraw() {
  const lines = [];
  const least = LEAST_WEIGHT * STEPS;
  const [T, S] = [queryCount(), keyCount()];
  for (const { head, slot, steps } of shownHeads()) {
    for (let query = 0; query < T; ++query) {
      if (state.query >= 0 && query !== state.query) continue;
      for (let key = 0; key < S; ++key) {
        if (state.query < 0 && state.key >= 0 && key !== state.key) continue;
        const step = steps[query * S + key];
        if (step >= least) lines.push({ weight: step / STEPS, query, key, head, slot });
      }
    }
  }
  return lines.sort((a, b) => b.weight - a.weight).slice(0, MOST_LINES);
}

function drawLines() {
  const svg = document.querySelector("#lines svg");
  const height = Math.max(queryCount(), keyCount()) * ROW;
  svg.setAttribute("viewBox", `0 0 ${SVG_WIDTH} ${height}`);
  svg.style.height = height + "px";
  svg.replaceChildren(...linesToDraw().map(({ weight, query, key, head, slot }) => {
    const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
    const [from, to] = [(query + .5) * ROW, (key + .5) * ROW];
    const middle = SVG_WIDTH / 2;
    path.setAttribute("d", `M0 ${from}C${middle} ${from} ${middle} ${to} ${SVG_WIDTH} ${to}`);
    path.setAttribute("stroke-width", (.5 + 6 * weight).toFixed(2));
    path.setAttribute("stroke-opacity", (.15 + .85 * Math.sqrt(weight)).toFixed(3));
    setHeadColor(path, slot);
    Object.assign(path.dataset, { query, key, head: attention().heads[head] });
    return path;
  }));
}

// The numbers beside the keys: of the chosen query, one for each head.
function drawNumbers() {
  const shown = shownHeads();
  [...byId("keys").children].forEach((item, key) => {
    for (const each of item.querySelectorAll(".weight")) each.remove();
    const isShown = state.query >= 0 && !isHidden(state.query, key);
    for (const each of shown) {
      const number = make("span", item);
      number.className = "weight";
      if (!isShown) continue;
      const weight = weightAt(each, state.query, key);
      number.textContent = weight.toFixed(3);
      setHeadColor(number, each.slot);
      const share = (.65 * Math.sqrt(weight)).toFixed(3);
      number.style.background = `rgb(var(--head, var(--line)) / ${share})`;
    }
  });
  [...byId("queries").children].forEach((item, query) => {
    const button = item.firstElementChild;
    button.classList.toggle("chosen", query === state.query);
    button.setAttribute("aria-pressed", query === state.kept);
  });
}
