// Sorts and filters the tables of a page that are marked for it, enlarges its pictures and opens the entry that a link leads to.
// The page stands without it. Nothing is fetched, and no text becomes markup.
"use strict";

const EMPTY = ["", "-", "(smoke)", "missing"];

// A cell's text as what it is sorted by: [2, ""] of nothing, [0, number] where it begins with one, else [1, text].
function key(row, column) {
  const text = row.cells[column].textContent.trim();
  if (EMPTY.includes(text)) return [2, ""];
  const number = /^[+-]?\d+(\.\d+)?(?![\w.])/.exec(text);
  return number ? [0, Number(number[0])] : [1, text];
}

function compare(a, b, sign) {
  // What is empty stands last in both directions.
  if (a[0] !== b[0]) return a[0] - b[0];
  const order = a[0] === 1 ? a[1].localeCompare(b[1], undefined, { numeric: true }) : a[1] - b[1];
  return a[0] === 2 ? 0 : sign * order;
}

function sort(table, column) {
  const heading = table.tHead.rows[0].cells[column];
  const rows = [...table.tBodies[0].rows];
  const keys = new Map(rows.map((row) => [row, key(row, column)]));
  const numbers = rows.some((row) => keys.get(row)[0] === 0);
  // Numbers begin with the highest, texts with A.
  const first = numbers ? "descending" : "ascending";
  const second = numbers ? "ascending" : "descending";
  const order = heading.getAttribute("aria-sort") === first ? second : first;
  rows.sort((a, b) => compare(keys.get(a), keys.get(b), order === "ascending" ? 1 : -1));
  for (const each of table.tHead.rows[0].cells) each.removeAttribute("aria-sort");
  heading.setAttribute("aria-sort", order);
  table.tBodies[0].append(...rows);
}

function makeSortable(table) {
  [...table.tHead.rows[0].cells].forEach((heading, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.title = "Sort by this column";
    button.append(...heading.childNodes);
    button.addEventListener("click", () => sort(table, column));
    heading.append(button);
  });
}

function makeFilters(table) {
  const rows = [...table.tBodies[0].rows];
  const box = document.createElement("div");
  box.className = "filters";
  box.setAttribute("role", "group");
  box.setAttribute("aria-label", "Filter the rows");
  const count = document.createElement("output");
  const choices = [];
  function apply() {
    let shown = 0;
    for (const row of rows) {
      row.hidden = choices.some(([column, select]) => select.value && row.cells[column].textContent.trim() !== select.value);
      shown += !row.hidden;
    }
    count.textContent = `${shown} of ${rows.length} rows`;
  }
  [...table.tHead.rows[0].cells].forEach((heading, column) => {
    if (!("filter" in heading.dataset)) return;
    const label = document.createElement("label");
    const select = document.createElement("select");
    const name = heading.textContent.trim();
    const values = [...new Set(rows.map((row) => row.cells[column].textContent.trim()))];
    values.sort((a, b) => a.localeCompare(b, undefined, { numeric: true }));
    // A name of its own: that of the label would have the chosen option in it.
    select.setAttribute("aria-label", name);
    select.add(new Option("all", ""));
    for (const value of values) select.add(new Option(value, value));
    select.addEventListener("change", apply);
    label.append(name, select);
    box.append(label);
    choices.push([column, select]);
  });
  const reset = document.createElement("button");
  reset.type = "button";
  reset.textContent = "Show all";
  reset.addEventListener("click", () => {
    for (const [, select] of choices) select.value = "";
    apply();
  });
  box.append(reset, count);
  table.parentElement.before(box);
  apply();
}

function makeEnlargeable(images) {
  const dialog = document.createElement("dialog");
  const close = document.createElement("button");
  close.type = "button";
  close.textContent = "Close";
  close.addEventListener("click", () => dialog.close());
  dialog.addEventListener("click", (event) => {
    if (event.target !== close) dialog.close();
  });
  document.body.append(dialog);
  for (const image of images) {
    const button = document.createElement("button");
    button.type = "button";
    button.className = "enlarge";
    button.setAttribute("aria-label", `Enlarge: ${image.alt}`);
    image.replaceWith(button);
    button.append(image);
    button.addEventListener("click", () => {
      dialog.replaceChildren(close, image.cloneNode());
      dialog.setAttribute("aria-label", image.alt);
      dialog.showModal();
    });
  }
}

function openTarget() {
  const target = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
  const entry = target && target.closest("details");
  if (entry) {
    entry.open = true;
    entry.scrollIntoView();
  }
}

for (const table of document.querySelectorAll("table[data-filters]")) {
  makeFilters(table);
  makeSortable(table);
}
const pictures = document.querySelectorAll("figure > img");
if (pictures.length) makeEnlargeable(pictures);
addEventListener("hashchange", openTarget);
openTarget();
