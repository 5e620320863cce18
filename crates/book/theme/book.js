// The contents at the side, and the search. The index is loaded when the search field is used first.
"use strict";

const FOUND_MAX = 20;
const EXCERPT_LENGTH = 120;
const root = document.body.dataset.root ?? "";
const menu = document.getElementById("menu");
const contents = document.getElementById("contents");
const search = document.getElementById("search");
const found = document.getElementById("found");
let sections;

menu.addEventListener("click", () => {
  menu.setAttribute("aria-expanded", String(contents.classList.toggle("open")));
});
showContents();

search.addEventListener("input", async () => {
  sections ??= fetch(`${root}search.json`).then((answer) => answer.json());
  show(matches(await sections, search.value));
});
search.addEventListener("keydown", (event) => {
  if (event.key === "Escape") search.value = "", show([]);
  if (event.key === "Enter") found.querySelector("a")?.click();
});
document.addEventListener("keydown", (event) => {
  if (event.key === "/" && document.activeElement === document.body) event.preventDefault(), search.focus();
});

/** Copies the links of the page with the contents. Without this script, the link to that page is there. */
async function showContents() {
  const answer = await fetch(`${root}contents.html`);
  if (!answer.ok) return;
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  const entries = [...page.getElementById("all-pages").children];
  for (const link of entries.filter((entry) => entry.matches("a"))) {
    const target = link.getAttribute("href");
    link.href = root + target;
    if (target === document.body.dataset.page) link.setAttribute("aria-current", "page");
  }
  contents.replaceChildren(...entries);
  contents.querySelector("[aria-current]")?.scrollIntoView({ block: "nearest" });
}

/** Sections that contain all words. A word in a heading counts more than one in the text. */
function matches(all, query) {
  const words = query.toLowerCase().split(/\s+/).filter(Boolean);
  if (words.length === 0) return [];
  const weight = (section) => {
    const title = `${section.page} ${section.heading}`.toLowerCase();
    const text = section.text.toLowerCase();
    if (!words.every((word) => title.includes(word) || text.includes(word))) return 0;
    return 1 + words.filter((word) => title.includes(word)).length * 10;
  };
  return all.map((section) => ({ section, weight: weight(section) })).filter(({ weight }) => weight > 0)
    .sort((a, b) => b.weight - a.weight).slice(0, FOUND_MAX)
    .map(({ section }) => ({ section, at: section.text.toLowerCase().indexOf(words[0]) }));
}

function show(results) {
  found.replaceChildren(...results.map(({ section, at }) => {
    const link = document.createElement("a");
    link.href = root + section.path;
    const title = document.createElement("b");
    title.textContent = section.heading && section.heading !== section.page ? `${section.page} › ${section.heading}` : section.page;
    const excerpt = document.createElement("span");
    const from = Math.max(0, at - EXCERPT_LENGTH / 2);
    excerpt.textContent = section.text.slice(from, from + EXCERPT_LENGTH);
    link.append(title, excerpt);
    const item = document.createElement("li");
    item.append(link);
    return item;
  }));
  if (search.value.trim() && results.length === 0) {
    const item = document.createElement("li");
    item.textContent = "No section contains all of these words.";
    found.append(item);
  }
  found.hidden = !search.value.trim();
}
