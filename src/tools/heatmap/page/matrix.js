
// --- The matrix ---

const MATRIX_SIDE = 560; // cells get smaller rather than the matrix larger
const matrix = byId("matrix");
const cells = document.createElement("canvas");
// The side of a cell, and the room of labels: none where cells are small.
let cellSide = 0;
let labelRoom = 0;

function measureMatrix() {
  const most = Math.max(queryCount(), keyCount());
  cellSide = Math.max(2, Math.min(ROW, Math.floor(MATRIX_SIDE / most)));
  labelRoom = cellSide >= 10 ? 110 : 0;
}

function drawCells() {
  const parts = shownHeads().map(({ slot, steps }) => ({ steps, colors: colorsOf(slot) }));
  paint(cells, keyCount(), queryCount(), parts, isHidden);
}

function shortLabel(label) {
  const letters = [...label];
  const short = letters.length > 13 ? letters.slice(0, 12).join("") + "…" : label;
  return "\u2068" + short + "\u2069";
}

// A label that ends at the origin of the canvas, within its room.
function drawLabel(context, label, isFaint) {
  context.globalAlpha = isFaint ? .45 : 1;
  context.beginPath();
  context.rect(1 - labelRoom, -cellSide, labelRoom, 2 * cellSide);
  context.clip();
  context.fillText(shortLabel(label), 0, 0);
}

function drawLabels(context, ink) {
  context.fillStyle = ink;
  context.font = `${Math.min(13, cellSide)}px ui-monospace, Menlo, Consolas, monospace`;
  context.textBaseline = "middle";
  context.textAlign = "right";
  context.direction = "ltr";
  const draw = (labels, chosen, place) => labels.forEach((label, i) => {
    context.save();
    place(labelRoom + (i + .5) * cellSide);
    drawLabel(context, label, chosen >= 0 && chosen !== i);
    context.restore();
  });
  draw(attention().queries, state.query, middle => context.translate(labelRoom - 6, middle));
  draw(attention().keys, state.key, middle => {
    context.translate(middle, labelRoom - 6);
    context.rotate(Math.PI / 2);
  });
}

function drawMatrix() {
  const [width, height] = [keyCount() * cellSide, queryCount() * cellSide];
  const scale = window.devicePixelRatio || 1;
  const size = [width, height].map(side => side + labelRoom + 1);
  [matrix.style.width, matrix.style.height] = size.map(side => side + "px");
  [matrix.width, matrix.height] = size.map(side => Math.round(side * scale));
  const context = matrix.getContext("2d");
  context.scale(scale, scale);
  context.imageSmoothingEnabled = false;
  context.drawImage(cells, labelRoom, labelRoom, width, height);
  const ink = getComputedStyle(document.body).color;
  if (labelRoom) drawLabels(context, ink);
  context.strokeStyle = ink;
  const start = labelRoom + .5;
  if (state.query >= 0) {
    context.strokeRect(start, start + state.query * cellSide, width, cellSide);
  }
  if (state.key >= 0) {
    context.strokeRect(start + state.key * cellSide, start, cellSide, height);
  }
}

// The query and key below the pointer; nothing outside or where keys are hidden.
function cellAt(event) {
  const box = matrix.getBoundingClientRect();
  const key = Math.floor((event.clientX - box.left - labelRoom) / cellSide);
  const query = Math.floor((event.clientY - box.top - labelRoom) / cellSide);
  const isInside = key >= 0 && query >= 0 && key < keyCount() && query < queryCount();
  return isInside && !isHidden(query, key) ? { query, key } : { query: state.kept, key: -1 };
}
