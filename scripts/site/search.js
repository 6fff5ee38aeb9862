// Searches the guides. Browsers let no script of a file read MkDocs's
// search_index.json, so that scripts/site.sh makes a script of it.
(() => {
  const MOST = 20, BEFORE = 60, EXCERPT = 200;
  const input = document.getElementById("mkdocs-search-query");
  const list = document.getElementById("mkdocs-search-results");

  // A word in a title counts more than one in the text; all words must be there.
  function score(entry, words) {
    const title = entry.title.toLowerCase(), text = entry.text.toLowerCase();
    let sum = 0;
    for (const word of words) {
      const found = (title.includes(word) ? 10 : 0) + (text.includes(word) ? 1 : 0);
      if (found === 0) return 0;
      sum += found;
    }
    return sum;
  }

  function excerpt(text, word) {
    const start = Math.max(0, text.toLowerCase().indexOf(word) - BEFORE);
    return text.slice(start, start + EXCERPT);
  }

  function result(entry, words) {
    const article = document.createElement("article");
    const link = document.createElement("a");
    const text = document.createElement("p");
    link.href = new URL(entry.location, new URL(base_url + "/", location.href));
    link.textContent = entry.title;
    text.textContent = excerpt(entry.text, words[0]);
    article.append(link, text);
    return article;
  }

  function search() {
    const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
    const found = words.length === 0 ? [] : searchIndex.docs
      .map((entry) => ({entry, score: score(entry, words)}))
      .filter((hit) => hit.score > 0)
      .sort((a, b) => b.score - a.score)
      .slice(0, MOST)
      .map((hit) => result(hit.entry, words));
    list.replaceChildren(...found);
    if (words.length > 0 && found.length === 0) {
      list.textContent = list.dataset.noResultsText;
    }
  }

  input.addEventListener("input", search);
})();
