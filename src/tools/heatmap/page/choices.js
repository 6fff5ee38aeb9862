
// --- Choosing what is shown ---

function make(tag, parent, text) {
  const element = document.createElement(tag);
  if (text !== undefined) element.textContent = text;
  parent.append(element);
  return element;
}

function makeChoices(parent, texts, choose) {
  parent.replaceChildren();
  texts.forEach((text, i) => {
    const button = make("button", parent, text);
    button.type = "button";
    button.setAttribute("role", "radio");
    button.addEventListener("click", () => choose(i));
  });
}

// Tab reaches the first chosen one, arrow keys the others.
function markChoices(parent, isChosen) {
  const buttons = [...parent.children];
  const first = buttons.findIndex((_, i) => isChosen(i));
  buttons.forEach((button, i) => {
    button.setAttribute("aria-checked", isChosen(i));
    button.tabIndex = i === first ? 0 : -1;
  });
}

function makeHeads() {
  makeChoices(byId("heads"), attention().heads.map(() => ""), chooseHead);
  [...byId("heads").children].forEach((button, head) => {
    make("canvas", button).setAttribute("aria-hidden", true);
    make("span", button, attention().heads[head]);
    button.setAttribute("aria-label", "head " + attention().heads[head]);
  });
}

function drawHeads() {
  const colors = colorsOf(-1);
  [...byId("heads").children].forEach((button, head) =>
    drawThumbnail(button.querySelector("canvas"), state.layer, head, colors));
}

function markHeads() {
  const parent = byId("heads");
  parent.setAttribute("role", state.several ? "group" : "radiogroup");
  markChoices(parent, head => state.heads.has(head));
  [...parent.children].forEach((button, head) => {
    button.setAttribute("role", state.several ? "checkbox" : "radio");
    setHeadColor(button, state.heads.get(head));
  });
}

function setHeadColor(element, slot) {
  const hasColor = state.several && slot !== undefined;
  element.style.setProperty("--head", hasColor ? headColor(slot).join(" ") : "");
}

// Shows this head alone; of several, adds or removes it.
function chooseHead(head) {
  const { heads } = state;
  if (!state.several) {
    state.heads = new Map([[head, 0]]);
  } else if (heads.has(head)) {
    if (heads.size > 1) heads.delete(head);
  } else if (heads.size < MOST_HEADS) {
    const used = new Set(heads.values());
    heads.set(head, [...Array(MOST_HEADS).keys()].find(slot => !used.has(slot)));
  } else {
    byId("said").textContent = `At most ${MOST_HEADS} heads are shown at once.`;
    return;
  }
  drawAll();
}

function chooseSeveral(several) {
  state.several = several;
  // The first one remains.
  state.heads = new Map([[state.heads.keys().next().value, 0]]);
  drawAll();
}

function chooseLayer(layer) {
  const isOther = layer !== state.layer;
  state.layer = layer;
  markChoices(byId("layers"), i => i === layer);
  if (isOther) drawHeads();
  drawAll();
}

function chooseAttention(index) {
  Object.assign(state, {
    attention: index, layer: 0, heads: new Map([[0, 0]]), query: -1, key: -1, kept: -1,
  });
  const { layers, heads } = attention();
  byId("modes").hidden = layers.length * heads.length === 1;
  document.querySelector("#heads-name label").hidden = heads.length === 1;
  markChoices(byId("kinds"), i => i === index);
  makeChoices(byId("layers"), layers.map(each => each.layer), chooseLayer);
  makeHeads();
  makeTokens();
  makeOverview();
  measureMatrix();
  drawHeads();
  chooseLayer(0);
  chooseMode(state.isOverview);
}

// All layers and heads, or one layer.
function chooseMode(isOverview) {
  state.isOverview = isOverview;
  markChoices(byId("modes"), i => (i === 1) === isOverview);
  byId("overview").hidden = !isOverview;
  byId("detail").hidden = isOverview;
  if (isOverview) markOverview();
}
