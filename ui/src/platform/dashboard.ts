// A dashboard as ThingsBoard keeps it. What the console shows is read from its JSON, and what is changed is changed in it: the rest stays as it came.
import type { EntityId, Json } from "./model";

export const COLUMNS = 24;
const HOUR_MS = 3_600_000;
export const KINDS = ["chart", "value", "gauge", "table", "alarms", "switch", "text", "map"] as const;
export type Kind = (typeof KINDS)[number];

export interface Place { row: number; col: number; sizeX: number; sizeY: number }
export interface Widget {
  id: string;
  /** None: ThingsBoard has it, the console does not. */
  kind: Kind | undefined;
  type: string;
  title: string;
  /** None: all devices, or those of an alias that is more than one entity. */
  entity: EntityId | undefined;
  /** All of its alias, as far as the alias names them. */
  entities: EntityId[];
  keys: string[];
  windowMs: number;
  unit: string;
  min: number;
  max: number;
  /** What a switch calls. */
  method: string;
  /** Markdown; `${key}` stands for a value. */
  text: string;
  /** Of a map. */
  latitudeKey: string;
  longitudeKey: string;
  place: Place;
}

/** By which names ThingsBoard knows them. */
const NAMES: Record<Kind, { fqn: string; type: string }> = {
  chart: { fqn: "system.time_series_chart", type: "timeseries" },
  value: { fqn: "system.cards.value_card", type: "latest" },
  gauge: { fqn: "system.gauge", type: "latest" },
  table: { fqn: "system.cards.attributes_card", type: "latest" },
  alarms: { fqn: "system.alarm_widgets.alarms_table", type: "alarm" },
  switch: { fqn: "system.single_switch", type: "rpc" },
  text: { fqn: "system.cards.markdown_card", type: "latest" },
  map: { fqn: "system.maps_v2.openstreetmap", type: "latest" },
};
const SIZES: Record<Kind, [number, number]> = { chart: [12, 6], value: [4, 3], gauge: [6, 5], table: [8, 5], alarms: [12, 5], switch: [4, 3], text: [8, 4], map: [12, 7] };

export interface Configuration extends Json {
  widgets?: Record<string, Json>;
  states?: Record<string, Json>;
  entityAliases?: Record<string, Json>;
}
export interface Dashboard extends Json { id?: EntityId; title: string; configuration: Configuration | null }

const object = (value: unknown): Json => (typeof value === "object" && value !== null && !Array.isArray(value) ? (value as Json) : {});
const list = (value: unknown): Json[] => (Array.isArray(value) ? (value as Json[]) : []);
const text = (value: unknown): string => (typeof value === "string" ? value : "");
const number = (value: unknown, otherwise: number): number => (typeof value === "number" && Number.isFinite(value) ? value : otherwise);

export function widgets({ configuration }: Dashboard): Widget[] {
  const layout = mainLayout(configuration ?? {});
  return Object.entries(configuration?.widgets ?? {})
    .map(([id, json]) => widget(id, json, object(layout[id]), configuration ?? {}))
    .sort((a, b) => a.place.row - b.place.row || a.place.col - b.place.col);
}

function widget(id: string, json: Json, at: Json, configuration: Configuration): Widget {
  const config = object(json["config"]);
  const source = list(config["datasources"])[0] ?? {};
  const settings = object(config["settings"]);
  const kind = kindOf(json);
  const entities = entitiesOf(source, configuration);
  const place = (name: keyof Place, otherwise: number) => number(at[name], number(json[name], otherwise));
  return {
    id,
    kind,
    type: text(json["typeFullFqn"]) || text(json["typeAlias"]) || text(json["type"]),
    title: text(config["title"]),
    // Alarms of several are those of all.
    entity: kind === "alarms" && entities.length > 1 ? undefined : (entities[0] ?? targetOf(config, configuration)),
    entities,
    windowMs: number(object(object((config["useDashboardTimewindow"] === false ? config : configuration)["timewindow"])["realtime"])["timewindowMs"], HOUR_MS),
    keys: list(source["dataKeys"]).map((key) => text(key["name"])).filter(Boolean),
    unit: text(config["units"]),
    min: number(settings["minValue"], number(settings["tickMin"], 0)),
    max: number(settings["maxValue"], number(settings["tickMax"], 100)),
    method: text(settings["method"]) || "setValue",
    text: text(settings["markdownTextPattern"]),
    latitudeKey: text(settings["latKeyName"]) || "latitude",
    longitudeKey: text(settings["lngKeyName"]) || "longitude",
    place: { row: place("row", 0), col: Math.min(COLUMNS - 1, place("col", 0)), sizeX: Math.min(COLUMNS, place("sizeX", 8)), sizeY: place("sizeY", 5) },
  };
}

function kindOf(json: Json): Kind | undefined {
  const fqn = text(json["typeFullFqn"]) || text(json["typeAlias"]);
  const known = KINDS.find((kind) => NAMES[kind].fqn === fqn);
  if (known) return known;
  if (/gauge/.test(fqn)) return "gauge";
  if (/value_card|simple_card|label_card/.test(fqn)) return "value";
  if (json["type"] === "timeseries" && /chart|timeseries|flot|graph|line/.test(fqn)) return "chart";
  if (/^system\.maps(_v2)?\.(openstreetmap|google_maps|here_map|tencent_maps)$/.test(fqn) && json["type"] === "latest") return "map";
  if (/alarms_table/.test(fqn)) return "alarms";
  if (/attributes_card|latest|entities_table|timeseries_table/.test(fqn) && json["type"] !== "alarm") return "table";
  return /switch|toggle/.test(fqn) && json["type"] === "rpc" ? "switch" : undefined;
}

function entitiesOf(source: Json, { entityAliases }: Configuration): EntityId[] {
  if (source["type"] === "device" && source["deviceId"]) return [{ entityType: "DEVICE", id: text(source["deviceId"]) }];
  return aliased(text(source["entityAliasId"]), entityAliases);
}

function targetOf(config: Json, { entityAliases }: Configuration): EntityId | undefined {
  const target = object(config["targetDevice"]);
  if (target["deviceId"]) return { entityType: "DEVICE", id: text(target["deviceId"]) };
  return aliased(text(target["entityAliasId"]) || text(list(config["targetDeviceAliases"])[0]), entityAliases)[0];
}

function aliased(id: string, aliases: Configuration["entityAliases"]): EntityId[] {
  const filter = object(object(aliases?.[id])["filter"]);
  const single = object(filter["singleEntity"]);
  if (filter["type"] === "singleEntity" && single["id"]) return [{ entityType: text(single["entityType"]), id: text(single["id"]) }];
  const ids = filter["type"] === "entityList" && Array.isArray(filter["entityList"]) ? (filter["entityList"] as unknown[]) : [];
  return ids.filter((one) => typeof one === "string").map((one) => ({ entityType: text(filter["entityType"]), id: one }));
}

function mainLayout(configuration: Configuration): Json {
  const states = Object.values(configuration.states ?? {});
  const root = states.find((state) => state["root"] === true) ?? states[0];
  return object(object(object(object(root)["layouts"])["main"])["widgets"]);
}

export const empty = (title: string): Dashboard => ({
  title,
  configuration: {
    widgets: {},
    states: { default: { name: title, root: true, layouts: { main: { widgets: {}, gridSettings: { columns: COLUMNS, margin: 10, outerMargin: true, backgroundSizeMode: "100%", autoFillHeight: false } } } } },
    entityAliases: {},
    filters: {},
    timewindow: { selectedTab: 0, realtime: { interval: 1000, timewindowMs: 3_600_000 }, aggregation: { type: "AVG", limit: 25_000 } },
    settings: { stateControllerId: "entity", showTitle: true, showDashboardTimewindow: true, toolbarAlwaysOpen: true },
  },
});

/** With this widget new or changed. */
export function put(dashboard: Dashboard, one: Widget): Dashboard {
  const next = structuredClone(dashboard);
  const configuration = (next.configuration ??= empty(next.title).configuration ?? {});
  const before = object(configuration.widgets?.[one.id]);
  const names = one.kind ? NAMES[one.kind] : undefined;
  const was = widgets(dashboard).find((other) => other.id === one.id);
  const isSameEntity = was !== undefined && was.entity?.id === one.entity?.id;
  const config = object(before["config"]);
  const type = names?.type ?? text(before["type"]);
  const sourceBefore = list(config["datasources"])[0] ?? {};
  const aliasId = isSameEntity ? (sourceBefore["entityAliasId"] ?? object(config["targetDevice"])["entityAliasId"]) : one.entity ? alias(configuration, one.entity) : undefined;
  const source = { ...(isSameEntity ? sourceBefore : { type: "entity", name: "", entityAliasId: aliasId }), dataKeys: one.keys.map((name, at) => dataKey(name, at, list(sourceBefore["dataKeys"]))) };
  const isSame = one.kind !== undefined && kindOf(before) === one.kind;
  configuration.widgets = {
    ...configuration.widgets,
    [one.id]: {
      ...before, id: one.id, ...(names && !isSame ? { typeFullFqn: names.fqn, type: names.type } : {}), ...one.place,
      config: {
        ...config, title: one.title, showTitle: true, units: one.unit,
        ...(type === "rpc" ? { targetDevice: { type: "entity", entityAliasId: aliasId } } : type === "alarm" ? { alarmSource: source, datasources: [source] } : { datasources: [source] }),
        settings: { ...object(config["settings"]), ...(one.kind === "gauge" ? { minValue: one.min, maxValue: one.max, tickMin: one.min, tickMax: one.max } : {}), ...(one.kind === "switch" ? { method: one.method } : {}), ...(one.kind === "text" ? { markdownTextPattern: one.text, useMarkdownTextFunction: false } : {}), ...(one.kind === "map" ? { latKeyName: one.latitudeKey, lngKeyName: one.longitudeKey } : {}) },
      },
    },
  };
  place(configuration, one);
  return next;
}

function dataKey(name: string, at: number, before: Json[]): Json {
  return before.find((key) => key["name"] === name) ?? { name, type: "timeseries", label: name, color: ["#0a6382", "#b0561a", "#a8231b", "#6a4fa3"][at % 4], settings: {} };
}

function alias(configuration: Configuration, entity: EntityId): string {
  const found = Object.keys(configuration.entityAliases ?? {}).find((id) => aliased(id, configuration.entityAliases)[0]?.id === entity.id);
  if (found) return found;
  const id = crypto.randomUUID?.() ?? String(Date.now());
  configuration.entityAliases = { ...configuration.entityAliases, [id]: { id, alias: entity.id, filter: { type: "singleEntity", resolveMultiple: false, singleEntity: entity } } };
  return id;
}

function place(configuration: Configuration, one: Widget): void {
  const states = (configuration.states ??= {});
  const [name, state] = Object.entries(states).find(([, state]) => state["root"] === true) ?? Object.entries(states)[0] ?? ["default", { name: "default", root: true }];
  const layouts = object(state["layouts"]);
  const main = object(layouts["main"]);
  states[name] = { ...state, layouts: { ...layouts, main: { ...main, widgets: { ...object(main["widgets"]), [one.id]: { ...object(object(main["widgets"])[one.id]), ...one.place } } } } };
}

export function remove(dashboard: Dashboard, id: string): Dashboard {
  const next = structuredClone(dashboard);
  delete next.configuration?.widgets?.[id];
  for (const state of Object.values(next.configuration?.states ?? {})) {
    for (const layout of Object.values(object(state["layouts"]))) delete object(object(layout)["widgets"])[id];
  }
  return next;
}

/** A new widget below all others. */
export function fresh(kind: Kind, all: Widget[]): Widget {
  const row = Math.max(0, ...all.map((one) => one.place.row + one.place.sizeY));
  return { id: crypto.randomUUID?.() ?? String(Date.now()), kind, type: NAMES[kind].fqn, title: "", entity: undefined, entities: [], windowMs: HOUR_MS, keys: [], unit: "", min: 0, max: 100, method: "setValue", text: "", latitudeKey: "latitude", longitudeKey: "longitude", place: { row, col: 0, ...size(kind) } };
}

/** Of a new widget. */
export function size(kind: Kind): { sizeX: number; sizeY: number } {
  const [sizeX, sizeY] = SIZES[kind];
  return { sizeX, sizeY };
}

/** Moved or resized; those in its way go down. */
export function settle(dashboard: Dashboard, id: string, to: Place): Dashboard {
  const all = widgets(dashboard);
  const moved = all.find((one) => one.id === id);
  if (!moved) return dashboard;
  const done: Widget[] = [{ ...moved, place: to }];
  for (const one of all.filter((other) => other.id !== id)) {
    let at = one.place;
    for (let hit = done.find((other) => overlap(other.place, at)); hit; hit = done.find((other) => overlap(other.place, at))) at = { ...at, row: hit.place.row + hit.place.sizeY };
    done.push({ ...one, place: at });
  }
  return done.filter((one) => all.find((before) => before.id === one.id)?.place !== one.place).reduce(moveTo, dashboard);
}

function moveTo(dashboard: Dashboard, one: Widget): Dashboard {
  const next = structuredClone(dashboard);
  const configuration = next.configuration ?? {};
  Object.assign(object(configuration.widgets?.[one.id]), one.place);
  place(configuration, one);
  return next;
}

const overlap = (a: Place, b: Place): boolean => a.col < b.col + b.sizeX && b.col < a.col + a.sizeX && a.row < b.row + b.sizeY && b.row < a.row + a.sizeY;
