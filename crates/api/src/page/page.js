// Asks for numbers every two seconds while the page can be seen, and shows them. No library, no other origin.
"use strict";

const EVERY_MS = 2000;
const POINTS_MAX = 60;
const TOKEN = "tidewire-token";

const by = (id) => document.getElementById(id);
const show = (id, text) => { const to = by(id); if (to.textContent !== text) to.textContent = text; };
const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const short = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
const count = (n) => (n < 100000 ? whole.format(n) : short.format(n));
const rate = (n) => (n < 10 && n > 0 ? n.toFixed(1) : count(n));
const plural = (n, word) => `${count(n)} ${word}${n === 1 ? "" : "s"}`;
const capital = (text) => text.charAt(0).toUpperCase() + text.slice(1);
const sentence = (text) => capital(text) + (text.endsWith(".") ? "" : ".");
const words = (reason) => capital(reason.replaceAll("_", " ").replace("qos0", "QoS 0"));

function bytes(n) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let at = 0;
  while (n >= 1024 && at < units.length - 1) { n /= 1024; at += 1; }
  return `${n < 10 && at > 0 ? n.toFixed(1) : Math.round(n)} ${units[at]}`;
}

function span(seconds) {
  const [d, h, m, s] = [Math.floor(seconds / 86400), Math.floor(seconds / 3600) % 24, Math.floor(seconds / 60) % 60, seconds % 60];
  if (d) return `${d} d ${h} h`;
  if (h) return `${h} h ${m} min`;
  return m ? `${m} min ${s} s` : `${s} s`;
}

function element(name, text, className) {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  if (className) made.className = className;
  return made;
}

class Refused extends Error {
  constructor(status, detail) { super(detail); this.status = status; }
}

async function ask(path, options = {}) {
  const headers = { ...options.headers };
  const token = sessionStorage.getItem(TOKEN);
  if (token) headers.Authorization = `Bearer ${token}`;
  const answer = await fetch(path, { ...options, headers });
  const body = answer.status === 204 ? null : await answer.json();
  if (answer.ok) return body;
  if (answer.status === 401 && token) { sessionStorage.removeItem(TOKEN); loginChanged(); }
  throw new Refused(answer.status, body?.detail ?? `status ${answer.status}`);
}

const total = (byQoS) => byQoS.qos0 + byQoS.qos1 + byQoS.qos2;
let last = null;
const history = { in: [], out: [] };

function showStats(stats) {
  const [received, sent] = [total(stats.messages.received), total(stats.messages.sent)];
  show("node", `MQTT broker · ${stats.node.name} · ${plural(stats.node.shards, "shard")}`);
  show("connections", count(stats.connections.current));
  show("connections-note", plural(stats.sessions.current, "session"));
  show("subscriptions", count(stats.subscriptions.current));
  show("retained", `${count(stats.retained.messages)} retained`);
  show("total-in", `${count(received)} in all`);
  show("total-out", `${count(sent)} in all`);
  show("uptime", span(stats.node.uptime_s));
  show("since", `since ${new Date(stats.node.started_at_unix_ms).toLocaleString([], { dateStyle: "short", timeStyle: "short" })}`);
  show("memory", stats.process.resident_bytes === null ? "–" : bytes(stats.process.resident_bytes));
  show("version", `tidewire ${stats.node.version}`);
  show("durability", sentence(stats.node.durability));
  by("durability").hidden = false;
  document.title = `${count(stats.connections.current)} connections · tidewire`;
  const seconds = last ? (stats.at_unix_ms - last.at) / 1000 : 0;
  const isSameRun = last && last.started === stats.node.started_at_unix_ms;
  if (isSameRun && seconds > 0) {
    const [perIn, perOut] = [(received - last.received) / seconds, (sent - last.sent) / seconds];
    show("rate-in", rate(perIn));
    show("rate-out", rate(perOut));
    if (stats.process.cpu_seconds !== null) show("cpu", `${Math.round(100 * (stats.process.cpu_seconds - last.cpu) / seconds)} % of one core`);
    draw(perIn, perOut);
  }
  last = { at: stats.at_unix_ms, started: stats.node.started_at_unix_ms, received, sent, cpu: stats.process.cpu_seconds };
  showDrops(stats.drops);
}

function draw(perIn, perOut) {
  for (const [line, value] of [["in", perIn], ["out", perOut]]) {
    history[line].push(value);
    if (history[line].length > POINTS_MAX) history[line].shift();
  }
  const highest = Math.max(1, ...history.in, ...history.out);
  show("chart-max", `scale to ${rate(highest)}/s`);
  for (const line of ["in", "out"]) {
    const points = history[line].map((value, index) => {
      const x = 600 - (history[line].length - 1 - index) * (600 / (POINTS_MAX - 1));
      return `${x.toFixed(1)},${(118 - (value / highest) * 116).toFixed(1)}`;
    });
    by(`line-${line}`).setAttribute("points", points.join(" "));
  }
}

function showDrops(drops) {
  const reasons = Object.entries(drops).filter(([, messages]) => messages > 0).sort((a, b) => b[1] - a[1]);
  if (reasons.length === 0) {
    by("drops").replaceChildren(element("li", "None. Every message found its way.", "quiet"));
    return;
  }
  by("drops").replaceChildren(...reasons.map(([reason, messages]) => {
    const [item, line, meter] = [element("li"), element("div"), element("meter")];
    line.append(element("span", words(reason)), element("span", count(messages)));
    meter.max = reasons[0][1];
    meter.value = messages;
    meter.setAttribute("aria-label", `${words(reason)}: ${messages} messages`);
    item.append(line, meter);
    return item;
  }));
}

function showListeners(listeners) {
  const sum = (refused) => Object.values(refused).reduce((a, b) => a + b, 0);
  by("listeners").replaceChildren(...listeners.map((listener) => {
    const row = element("tr");
    row.append(element("td", `${listener.transport}/${listener.name}`), element("td", listener.address));
    for (const n of [listener.connections, listener.accepted, sum(listener.refused)]) row.append(element("td", count(n), "number"));
    return row;
  }));
  if (listeners.length === 0) {
    const [row, cell] = [element("tr"), element("td", "No listener is configured.", "quiet")];
    cell.colSpan = 5;
    row.append(cell);
    by("listeners").replaceChildren(row);
  }
  showCommands(listeners.find((listener) => listener.transport === "tcp"));
}

function showCommands(tcp) {
  if (!tcp) return;
  const host = location.hostname.replace(/^\[|\]$/g, "");
  const port = tcp.address.slice(tcp.address.lastIndexOf(":") + 1);
  const where = `-h ${host}${port === "1883" ? "" : ` -p ${port}`}`;
  show("command-sub", `mosquitto_sub ${where} -t 'demo/#' -v`);
  show("command-pub", `mosquitto_pub ${where} -t demo/hello -m 'hello'`);
}

function showRefused(clients) {
  if (clients.length === 0) {
    by("refused-list").replaceChildren(element("p", "Nobody was turned away.", "quiet"));
    return;
  }
  const [table, head, body] = [element("table"), element("thead"), element("tbody")];
  const titles = element("tr");
  for (const title of ["When", "Client", "User", "Address", "Why"]) {
    const cell = element("th", title);
    cell.scope = "col";
    titles.append(cell);
  }
  head.append(titles);
  body.append(...clients.map((client) => {
    const row = element("tr");
    const why = client.because ? `${client.reason}: ${client.because}` : client.reason;
    for (const text of [new Date(client.at_unix_ms).toLocaleTimeString(), client.client_id || "(none)", client.user_name ?? "–", client.address, why]) row.append(element("td", text));
    return row;
  }));
  table.append(head, body);
  by("refused-list").replaceChildren(table);
}

async function refresh() {
  try {
    const [stats, listeners] = await Promise.all([ask("/api/v1/stats"), ask("/api/v1/listeners")]);
    showStats(stats);
    showListeners(listeners);
    await showHealth();
  } catch (problem) {
    if (problem.status === 401) { state("login required", "bad"); openLogin(); } else state("no answer", "bad");
    return;
  }
  if (!sessionStorage.getItem(TOKEN)) return;
  try {
    showRefused(await ask("/api/v1/refused-clients?limit=20"));
  } catch (problem) {
    by("refused-list").replaceChildren(element("p", problem.message, "bad"));
  }
}

async function showHealth() {
  const answer = await fetch("/readyz");
  const health = await answer.json();
  if (answer.ok) state("running", "good"); else state(health.reasons?.[0] ?? "not ready", "bad");
}

function state(text, className) {
  show("health", text);
  by("health").className = `pill ${className}`;
}

function openLogin() {
  if (!by("login").hidden) return;
  by("login").hidden = false;
  by("password").focus();
}

function loginChanged() {
  const isIn = sessionStorage.getItem(TOKEN) !== null;
  show("login-open", isIn ? "Log out" : "Log in");
  by("login").hidden = true;
  if (!isIn) by("refused-list").replaceChildren(element("p", "Log in to see who was refused, and why.", "quiet"));
}

by("login-open").addEventListener("click", async () => {
  if (!sessionStorage.getItem(TOKEN)) {
    if (by("login").hidden) openLogin(); else by("login").hidden = true;
    return;
  }
  try { await ask("/api/v1/logout", { method: "POST" }); } catch { /* It has ended either way. */ }
  sessionStorage.removeItem(TOKEN);
  loginChanged();
});

by("login-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  const button = event.submitter ?? by("login-form").querySelector("button");
  button.disabled = true;
  show("login-error", "");
  try {
    const body = JSON.stringify({ user: by("user").value, password: by("password").value });
    const login = await ask("/api/v1/login", { method: "POST", headers: { "Content-Type": "application/json" }, body });
    sessionStorage.setItem(TOKEN, login.token);
    by("password").value = "";
    loginChanged();
    by("login-open").focus();
    refresh();
  } catch (problem) {
    show("login-error", problem.message === "Failed to fetch" ? "The server does not answer." : `Not logged in: ${problem.message}.`);
  } finally {
    button.disabled = false;
  }
});

for (const button of document.querySelectorAll(".copy")) {
  const label = button.firstChild;
  button.addEventListener("click", async () => {
    const source = by(button.dataset.of);
    try {
      await navigator.clipboard.writeText(source.textContent);
      label.textContent = "Copied";
    } catch {
      getSelection().selectAllChildren(source);
      label.textContent = "Selected";
    }
    setTimeout(() => { label.textContent = "Copy"; }, 1500);
  });
}

async function run() {
  if (!document.hidden) await refresh();
  setTimeout(run, EVERY_MS);
}

loginChanged();
run();
