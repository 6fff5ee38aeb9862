
// --- Words ---

const nameOf = (labels, i) => "\u201c\u2068" + labels[i] + "\u2069\u201d";

function placeText() {
  const { name, heads, layers } = attention();
  const numbers = [...state.heads.keys()].map(head => heads[head]);
  const place = `Layer ${layers[state.layer].layer}, ` +
    `${numbers.length > 1 ? "heads" : "head"} ${numbers.join(", ")}`;
  return data.attentions.length > 1 ? `${place} (${name})` : place;
}

// The keys with the largest weights of the query.
function mostOf(shown) {
  const { keys } = attention();
  return keys.map((_, key) => [key, weightAt(shown, state.query, key)])
    .filter(each => each[1] > 0)
    .sort((a, b) => b[1] - a[1])
    .slice(0, state.heads.size > 1 ? 2 : 5)
    .map(([key, weight]) => `${nameOf(keys, key)} ${weight.toFixed(3)}`)
    .join(", ") || "nothing";
}

// A text for each head that is shown, before its number if there are several.
function ofHeads(textOf) {
  const { heads } = attention();
  const numberOf = shown => state.heads.size > 1 ? ` (head ${heads[shown.head]})` : "";
  return shownHeads().map(shown => textOf(shown) + numberOf(shown)).join("; ");
}

function say() {
  const { queries, keys } = attention();
  let text = "all tokens.";
  if (state.query >= 0 && state.key >= 0) {
    const weights = ofHeads(shown => weightAt(shown, state.query, state.key).toFixed(3));
    text = `${nameOf(queries, state.query)} attends to ${nameOf(keys, state.key)} ` +
      `with weight ${weights}.`;
  } else if (state.query >= 0) {
    text = `${nameOf(queries, state.query)} attends to ${ofHeads(mostOf)}.`;
  } else if (state.key >= 0) {
    text = `who attends to ${nameOf(keys, state.key)}.`;
  }
  byId("said").textContent = `${placeText()}: ${text}`;
}
