
// --- Drawing, events and the start ---

function drawView() {
  drawLines();
  drawNumbers();
  drawMatrix();
  say();
}

function drawAll() {
  markHeads();
  byId("overlay").hidden = state.heads.size === 1;
  drawCells();
  drawView();
}

function look(query, key) {
  if (query === state.query && key === state.key) return;
  Object.assign(state, { query, key });
  drawView();
}

matrix.addEventListener("pointermove", event => {
  const { query, key } = cellAt(event);
  look(query, key);
});
matrix.addEventListener("pointerleave", () => look(state.kept, -1));
matrix.addEventListener("click", event => {
  const { query, key } = cellAt(event);
  state.kept = key < 0 || query === state.kept ? -1 : query;
  look(query, key);
  drawNumbers();
});

const clamp = (at, count) => Math.max(0, Math.min(count - 1, at));

function moveQuery(step) {
  const focused = document.activeElement.closest("#queries li");
  const from = focused ? [...byId("queries").children].indexOf(focused) : state.query;
  const to = from < 0 ? 0 : clamp(from + step, queryCount());
  byId("queries").children[to].firstElementChild.focus({ focusVisible: true });
  look(to, -1);
}

// If several heads are shown, moves to the next button, which a key then presses.
function moveHead(step) {
  const buttons = [...byId("heads").children];
  const focused = buttons.indexOf(document.activeElement);
  const [first] = state.heads.keys();
  const to = clamp((state.several && focused >= 0 ? focused : first) + step, buttons.length);
  if (!state.several) chooseHead(to);
  if (state.several || focused >= 0) buttons[to].focus();
}

function moveLayer(step) {
  const buttons = byId("layers").children;
  const hadFocus = byId("layers").contains(document.activeElement);
  const to = clamp(state.layer + step, buttons.length);
  chooseLayer(to);
  if (hadFocus) buttons[to].focus();
}

const MOVES = {
  ArrowUp: () => moveQuery(-1), ArrowDown: () => moveQuery(1),
  ArrowLeft: () => moveHead(-1), ArrowRight: () => moveHead(1),
  PageUp: () => moveLayer(-1), PageDown: () => moveLayer(1),
};

document.addEventListener("keydown", event => {
  if (event.ctrlKey || event.altKey || event.metaKey) return;
  if (event.key === "Escape") {
    state.kept = -1;
    look(-1, -1);
    drawNumbers();
  } else if (state.isOverview ? event.key.startsWith("Arrow") : event.key in MOVES) {
    if (state.isOverview) moveInOverview(event.key);
    else MOVES[event.key]();
    event.preventDefault();
  }
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  makeOverview();
  markOverview();
  drawHeads();
  drawAll();
});

document.title = data.title ? "Attention of " + data.title : "Attention";
byId("title").textContent = document.title;
byId("several").checked = false; // browsers remember it when they reload
byId("several").addEventListener("change", event => chooseSeveral(event.target.checked));
makeChoices(byId("kinds"), data.attentions.map(each => each.name), chooseAttention);
byId("kinds-choice").hidden = data.attentions.length === 1;
makeChoices(byId("modes"), ["One layer", "All layers and heads"], i => chooseMode(i === 1));
chooseAttention(0);
