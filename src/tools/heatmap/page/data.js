"use strict";

// --- The data, and what of it is shown ---
//
// data.attentions: of each kind of attention its name, the labels of its
// queries and keys, its heads, and its layers. A layer has its number, whether
// later keys are hidden from a query, and a text for each head: two letters for
// each weight, in rows, without those of hidden keys.

const byId = id => document.getElementById(id);
const data = JSON.parse(byId("data").textContent);

// Indices of attention and layer; the heads, each with its color's index; the
// query that is looked at and the key, or -1; the query that a click keeps, or -1.
const state = {
  attention: 0, layer: 0, heads: new Map([[0, 0]]), several: false,
  query: -1, key: -1, kept: -1, isOverview: false,
};
const attention = () => data.attentions[state.attention];
const queryCount = () => attention().queries.length;
const keyCount = () => attention().keys.length;
const isHidden = (query, key) => attention().layers[state.layer].causal && key > query;

const STEPS = 4095; // from weight 0 to weight 1
const VALUES = new Uint8Array(128);
[..."ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"].forEach(
  (letter, value) => { VALUES[letter.charCodeAt(0)] = value; });

// The weights in steps, a row for each query; those of hidden keys are 0.
function decode(layer, head) {
  const { causal, weights } = attention().layers[layer];
  const letters = weights[head];
  const [T, S] = [queryCount(), keyCount()];
  const steps = new Uint16Array(T * S);
  let at = 0;
  for (let query = 0; query < T; ++query) {
    const end = causal ? query + 1 : S;
    for (let key = 0; key < end; ++key, at += 2) {
      steps[query * S + key] =
        VALUES[letters.charCodeAt(at)] * 64 + VALUES[letters.charCodeAt(at + 1)];
    }
  }
  return steps;
}

const decoded = new Map();
const MOST_DECODED = 32; // heads whose weights stay in memory

function stepsOf(head) {
  const name = [state.attention, state.layer, head].join();
  if (!decoded.has(name)) {
    if (decoded.size >= MOST_DECODED) decoded.clear();
    decoded.set(name, decode(state.layer, head));
  }
  return decoded.get(name);
}

// The heads that are shown: index, steps, and the index of the color.
const shownHeads = () =>
  [...state.heads].map(([head, slot]) => ({ head, slot, steps: stepsOf(head) }));
const weightAt = (shown, query, key) => shown.steps[query * keyCount() + key] / STEPS;
