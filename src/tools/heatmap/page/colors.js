
// --- Colors ---

const isDark = () => matchMedia("(prefers-color-scheme: dark)").matches;

// From the color of no weight to that of weight 1, by the root of the weight.
const RAMPS = {
  light: [[0, 240, 244, 249], [.35, 156, 196, 228], [.7, 43, 110, 178], [1, 8, 36, 82]],
  dark: [[0, 27, 34, 44], [.35, 33, 74, 120], [.7, 74, 148, 222], [1, 226, 241, 255]],
};
// Several heads have as many colors as can be told apart.
const HEAD_COLORS = {
  light: [[0, 90, 181], [200, 60, 0], [0, 128, 85], [150, 40, 150],
          [140, 105, 0], [0, 140, 170], [210, 20, 80], [85, 85, 85]],
  dark: [[90, 165, 255], [255, 135, 60], [60, 205, 150], [215, 125, 225],
         [225, 190, 60], [80, 215, 235], [255, 105, 150], [190, 190, 190]],
};
const MOST_HEADS = HEAD_COLORS.light.length;

const theme = () => isDark() ? "dark" : "light";
const headColor = slot => HEAD_COLORS[theme()][slot];

function rampFor(slot) {
  const ramp = RAMPS[theme()];
  return state.several && slot >= 0 ? [ramp[0], [1, ...headColor(slot)]] : ramp;
}

// Red, green and blue of each step.
function colorsOf(slot) {
  const ramp = rampFor(slot);
  const colors = new Uint8Array(3 * (STEPS + 1));
  let next = 1;
  for (let step = 0; step <= STEPS; ++step) {
    const at = Math.sqrt(step / STEPS);
    while (next + 1 < ramp.length && ramp[next][0] < at) ++next;
    const [from, to] = [ramp[next - 1], ramp[next]];
    const share = (at - from[0]) / (to[0] - from[0]);
    for (let i = 0; i < 3; ++i) {
      colors[3 * step + i] = Math.round(from[i + 1] + share * (to[i + 1] - from[i + 1]));
    }
  }
  return colors;
}

// Draws a pixel for each weight, in the color of the part whose weight is the
// largest there; none where isClear(row, column).
function paint(canvas, width, height, parts, isClear) {
  canvas.width = width;
  canvas.height = height;
  const context = canvas.getContext("2d");
  const image = context.createImageData(width, height);
  for (let i = 0; i < width * height; ++i) {
    if (isClear(Math.floor(i / width), i % width)) continue;
    let most = parts[0];
    for (const part of parts) {
      if (part.steps[i] > most.steps[i]) most = part;
    }
    const at = 3 * most.steps[i];
    for (let j = 0; j < 3; ++j) image.data[4 * i + j] = most.colors[at + j];
    image.data[4 * i + 3] = 255;
  }
  context.putImageData(image, 0, 0);
}

const MOST_PIXELS = 128; // the side of a small picture

// Draws one head; of more weights than pixels the largest.
function drawThumbnail(canvas, layer, head, colors) {
  const [T, S] = [queryCount(), keyCount()];
  const [down, across] = [T, S].map(count => Math.ceil(count / MOST_PIXELS));
  const [height, width] = [Math.ceil(T / down), Math.ceil(S / across)];
  const all = decode(layer, head);
  const steps = new Uint16Array(width * height);
  for (let query = 0; query < T; ++query) {
    for (let key = 0; key < S; ++key) {
      const i = Math.floor(query / down) * width + Math.floor(key / across);
      steps[i] = Math.max(steps[i], all[query * S + key]);
    }
  }
  const { causal } = attention().layers[layer];
  paint(canvas, width, height, [{ steps, colors }],
        (row, column) => causal && column * across >= (row + 1) * down);
}
