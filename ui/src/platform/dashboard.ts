// A dashboard in ThingsBoard's format. The console reads and edits its JSON in place, so that unknown parts are
// preserved.
import type { Aggregation, EntityId, Json } from "./model";

export const COLUMNS = 24;
const HOUR_MS = 3_600_000;
export const KINDS = ["chart", "value", "gauge", "table", "log", "alarms", "switch", "text", "map"] as const;
export type Kind = (typeof KINDS)[number];

/** Widgets with a time window. */
export const hasTime = (kind: Kind | undefined): boolean => kind === "chart" || kind === "log";

export interface Place {
  row: number;
  col: number;
  sizeX: number;
  sizeY: number;
}
/** Time window of a chart: the last `ms` milliseconds, or a fixed interval. */
export interface TimeWindow {
  ms: number;
  fixed: { from: number; to: number } | undefined;
  aggregation: Aggregation;
}
/** The displayed state of a dashboard, and the entity of that state. */
export interface View {
  state?: string | undefined;
  entity?: EntityId | undefined;
  /** Entities of aliases that need a query. */ found?: Map<string, EntityId[]> | undefined;
}
export interface State {
  id: string;
  name: string;
  isRoot: boolean;
}
/** Where a switch reads its state: nowhere, by RPC, in an attribute, or in telemetry. */
export const STATE_SOURCES = ["none", "rpc", "SHARED_SCOPE", "CLIENT_SCOPE", "SERVER_SCOPE", "timeseries"] as const;
export interface StateSource {
  from: (typeof STATE_SOURCES)[number];
  /** RPC method or key. */ name: string;
  /** The value that means on. */ on: unknown;
}
/** What a switch does: call the device, set an attribute, or save telemetry. */
export const SWITCH_ACTIONS = ["rpc", "SHARED_SCOPE", "SERVER_SCOPE", "timeseries"] as const;
export interface SwitchAction {
  by: (typeof SWITCH_ACTIONS)[number];
  /** RPC method or key. */ name: string;
  value: unknown;
}
/** A button that opens another state: in a row of a table, or next to the title. */
export interface StateLink {
  name: string;
  state: string;
  hasEntity: boolean;
  isOfRow: boolean;
}
export interface WidgetKey {
  name: string;
  label: string;
  type: "timeseries" | "attribute" | "entityField";
  unit: string;
  digits: number | undefined;
}
/** Entities and keys of one data source. */
export interface WidgetSource {
  entities: EntityId[];
  keys: WidgetKey[];
}
export interface Widget {
  id: string;
  /** Undefined for a widget type that the console does not support. */
  kind: Kind | undefined;
  type: string;
  title: string;
  /** ThingsBoard can hide the title of a widget. */
  hasTitle: boolean;
  /** Undefined for all devices, or for an alias with several entities. */
  entity: EntityId | undefined;
  /** Entities of all aliases. */
  entities: EntityId[];
  sources: WidgetSource[];
  /** Keys of the first source, which the form edits, in the format of `keyWord`. */
  keys: string[];
  window: TimeWindow;
  /** The widget has a time window of its own. */
  hasOwnWindow: boolean;
  stateLinks: StateLink[];
  unit: string;
  min: number;
  max: number;
  switchActions: { on: SwitchAction; off: SwitchAction };
  /** How a switch reads its state. */
  stateSource: StateSource;
  /** Markdown. `${key}` stands for a value. */
  text: string;
  /** Only for maps. */
  latitudeKey: string;
  longitudeKey: string;
  place: Place;
}

/** ThingsBoard's names of the widget types. */
const NAMES: Record<Kind, { fqn: string; type: string }> = {
  chart: { fqn: "system.time_series_chart", type: "timeseries" },
  value: { fqn: "system.cards.value_card", type: "latest" },
  gauge: { fqn: "system.gauge", type: "latest" },
  table: { fqn: "system.cards.attributes_card", type: "latest" },
  log: { fqn: "system.cards.timeseries_table", type: "timeseries" },
  alarms: { fqn: "system.alarm_widgets.alarms_table", type: "alarm" },
  switch: { fqn: "system.single_switch", type: "rpc" },
  text: { fqn: "system.cards.markdown_card", type: "latest" },
  map: { fqn: "system.maps_v2.openstreetmap", type: "latest" },
};
const SIZES: Record<Kind, [number, number]> = {
  chart: [12, 6],
  value: [4, 3],
  gauge: [6, 5],
  table: [8, 5],
  log: [12, 5],
  alarms: [12, 5],
  switch: [4, 3],
  text: [8, 4],
  map: [12, 7],
};

export interface Configuration extends Json {
  widgets?: Record<string, Json>;
  states?: Record<string, Json>;
  entityAliases?: Record<string, Json>;
  filters?: Record<string, Json>;
}
export interface Dashboard extends Json {
  id?: EntityId;
  title: string;
  configuration: Configuration | null;
}

export const object = (value: unknown): Json =>
  typeof value === "object" && value !== null && !Array.isArray(value) ? (value as Json) : {};
export const list = (value: unknown): Json[] => (Array.isArray(value) ? (value as Json[]) : []);
export const text = (value: unknown): string => (typeof value === "string" ? value : "");
const number = (value: unknown, otherwise: number): number =>
  typeof value === "number" && Number.isFinite(value) ? value : otherwise;

/** Replaces ThingsBoard's translation placeholders with words made from their keys. */
const translated = (value: string): string =>
  value.replace(/\{i18n:([^}]+)\}/g, (_, key: string) => {
    const words = (key.split(".").at(-1) ?? key).replaceAll("-", " ");
    return words.charAt(0).toUpperCase() + words.slice(1);
  });

export function states({ configuration }: Dashboard): State[] {
  const root = stateOf(configuration ?? {}, undefined)?.[0];
  return Object.entries(configuration?.states ?? {})
    .map(([id, state]) => ({ id, name: translated(text(state["name"])) || id, isRoot: id === root }))
    .sort((a, b) => Number(b.isRoot) - Number(a.isRoot));
}

/** Returns the requested state, or the initial state. */
function stateOf({ states }: Configuration, id: string | undefined): [string, Json] | undefined {
  const all = Object.entries(states ?? {});
  return all.find(([name]) => name === id) ?? all.find(([, state]) => state["root"] === true) ?? all[0];
}

/** Positions by widget, from all layouts of a state. */
const placesOf = (state: Json | undefined): Json =>
  Object.assign(
    {},
    ...Object.values(object(state?.["layouts"]))
      .map((layout) => object(object(layout)["widgets"]))
      .reverse(),
  ) as Json;

/** Widgets of a state. A widget in no state belongs to the initial state. */
export function widgets({ configuration }: Dashboard, view: View = {}): Widget[] {
  const known = configuration ?? {};
  const [current, state] = stateOf(known, view.state) ?? [undefined, undefined];
  const isFirst = current === stateOf(known, undefined)?.[0];
  const places = placesOf(state);
  const elsewhere = new Set(Object.values(known.states ?? {}).flatMap((other) => Object.keys(placesOf(other))));
  return Object.entries(known.widgets ?? {})
    .filter(([id]) => id in places || (isFirst && !elsewhere.has(id)))
    .map(([id, json]) => widget(id, json, object(places[id]), known, view))
    .sort((a, b) => a.place.row - b.place.row || a.place.col - b.place.col);
}

function widget(id: string, json: Json, at: Json, configuration: Configuration, view: View): Widget {
  const config = object(json["config"]);
  const settings = object(config["settings"]);
  const kind = kindOf(json);
  /** Tables have a title besides the widget's. */
  const own =
    kind === "table" || kind === "alarms"
      ? translated(text(settings["entitiesTitle"]) || text(settings["alarmsTitle"]))
      : "";
  const sources = sourcesOf(json).map((source): WidgetSource => ({
    entities: entitiesOf(source, configuration, view),
    keys: keysOf(source, config),
  }));
  const entities = [...new Map(sources.flatMap((source) => source.entities).map((one) => [one.id, one])).values()];
  const hasOwnWindow = config["useDashboardTimewindow"] === false;
  const place = (name: keyof Place, otherwise: number) => number(at[name], number(json[name], otherwise));
  return {
    id,
    kind,
    type: text(json["typeFullFqn"]) || text(json["typeAlias"]) || text(json["type"]),
    title: config["showTitle"] === false && own ? own : translated(text(config["title"])),
    hasTitle: config["showTitle"] !== false || own !== "",
    // A widget with the alarms of several entities shows all alarms.
    entity:
      kind === "alarms" && entities.length > 1 ? undefined : (entities[0] ?? targetOf(config, configuration, view)),
    entities,
    sources,
    window: windowOf(object((hasOwnWindow ? config : configuration)["timewindow"])),
    hasOwnWindow,
    stateLinks: stateLinksOf(config),
    keys: (sources[0]?.keys ?? []).map(keyWord),
    unit: text(config["units"]),
    min: number(settings["minValue"], number(settings["tickMin"], 0)),
    max: number(settings["maxValue"], number(settings["tickMax"], 100)),
    switchActions: { on: switchActionOf(settings, true), off: switchActionOf(settings, false) },
    stateSource: stateSourceOf(settings),
    text: isHtml(json) ? plainText(text(settings["cardHtml"])) : text(settings["markdownTextPattern"]),
    latitudeKey: text(object(markersOf(json)[0]?.["xKey"])["name"]) || text(settings["latKeyName"]) || "latitude",
    longitudeKey: text(object(markersOf(json)[0]?.["yKey"])["name"]) || text(settings["lngKeyName"]) || "longitude",
    place: {
      row: place("row", 0),
      col: Math.min(COLUMNS - 1, place("col", 0)),
      sizeX: Math.min(COLUMNS, place("sizeX", 8)),
      sizeY: place("sizeY", 5),
    },
  };
}

/** Reads the settings of ThingsBoard's current and older switches. */
function stateSourceOf(settings: Json): StateSource {
  const initial = object(settings["initialState"]);
  const [rpc, attribute, series] = [
    object(initial["executeRpc"]),
    object(initial["getAttribute"]),
    object(initial["getTimeSeries"]),
  ];
  const scope = STATE_SOURCES.find((one) => one === attribute["scope"]);
  const on = object(initial["dataToValue"])["compareToValue"] ?? true;
  if (initial["action"] === "EXECUTE_RPC") return { from: "rpc", name: text(rpc["method"]) || "getState", on };
  if (initial["action"] === "GET_ATTRIBUTE")
    return { from: scope ?? "SHARED_SCOPE", name: text(attribute["key"]) || "state", on };
  if (initial["action"] === "GET_TIME_SERIES") return { from: "timeseries", name: text(series["key"]) || "state", on };
  const key = text(settings["valueKey"]) || "value";
  if (settings["retrieveValueMethod"] === "rpc")
    return { from: "rpc", name: text(settings["getValueMethod"]) || "getValue", on };
  if (settings["retrieveValueMethod"] === "attribute") return { from: "SERVER_SCOPE", name: key, on };
  return settings["retrieveValueMethod"] === "timeseries"
    ? { from: "timeseries", name: key, on }
    : { from: "none", name: "", on };
}

/** The action of a switch for on or off, for both kinds of ThingsBoard's switches. */
export const updates = (settings: Json, to: boolean): Json =>
  object(
    to
      ? (settings["onUpdateState"] ?? settings["checkState"])
      : (settings["offUpdateState"] ?? settings["uncheckState"]),
  );

function switchActionOf(settings: Json, to: boolean): SwitchAction {
  const json = updates(settings, to);
  const data = object(json["valueToData"]);
  const value = data["type"] === "CONSTANT" ? (data["constantValue"] ?? null) : data["type"] === "NONE" ? null : to;
  const attribute = object(json["setAttribute"]);
  if (json["action"] === "SET_ATTRIBUTE")
    return {
      by: attribute["scope"] === "SERVER_SCOPE" ? "SERVER_SCOPE" : "SHARED_SCOPE",
      name: text(attribute["key"]) || "state",
      value,
    };
  if (json["action"] === "ADD_TIME_SERIES")
    return { by: "timeseries", name: text(object(json["putTimeSeries"])["key"]) || "state", value };
  return {
    by: "rpc",
    name:
      text(object(json["executeRpc"])["method"]) ||
      text(settings["method"]) ||
      text(settings["setValueMethod"]) ||
      "setValue",
    value,
  };
}

function switchSettings({ switchActions, stateSource: { from, name, on } }: Widget, before: Json): Json {
  const initial: Json =
    from === "none"
      ? { action: "DO_NOTHING", defaultValue: false }
      : from === "rpc"
        ? {
            action: "EXECUTE_RPC",
            executeRpc: {
              requestTimeout: 5_000,
              ...object(object(before["initialState"])["executeRpc"]),
              method: name,
            },
          }
        : from === "timeseries"
          ? { action: "GET_TIME_SERIES", getTimeSeries: { key: name, subscribeForUpdates: true } }
          : { action: "GET_ATTRIBUTE", getAttribute: { scope: from, key: name, subscribeForUpdates: true } };
  const turn = ({ by, name: key, value }: SwitchAction): Json => ({
    ...(by === "rpc"
      ? { action: "EXECUTE_RPC", executeRpc: { method: key, requestTimeout: 5_000, requestPersistent: false } }
      : by === "timeseries"
        ? { action: "ADD_TIME_SERIES", putTimeSeries: { key } }
        : { action: "SET_ATTRIBUTE", setAttribute: { scope: by, key } }),
    valueToData: { type: "CONSTANT", constantValue: value },
  });
  return {
    initialState: {
      defaultValue: false,
      dataToValue: { type: "NONE", compareToValue: on },
      ...object(before["initialState"]),
      ...initial,
    },
    onUpdateState: turn(switchActions.on),
    offUpdateState: turn(switchActions.off),
  };
}

const AGGREGATIONS: Aggregation[] = ["NONE", "AVG", "MIN", "MAX", "SUM", "COUNT"];

/** `selectedTab` 1 is history: the last milliseconds, or a fixed interval. */
export function windowOf(json: Json): TimeWindow {
  const history = object(json["history"]);
  const between = object(history["fixedTimewindow"]);
  const [from, to] = [number(between["startTimeMs"], 0), number(between["endTimeMs"], 0)];
  const isPast = json["selectedTab"] === 1;
  const aggregation = AGGREGATIONS.find((one) => one === object(json["aggregation"])["type"]) ?? "AVG";
  return {
    ms: number((isPast ? history : object(json["realtime"]))["timewindowMs"], HOUR_MS),
    fixed: isPast && history["historyType"] === 1 && from < to ? { from, to } : undefined,
    aggregation,
  };
}

/** Sets a length that follows the current time. */
const withLength = (json: Json, ms: number): Json => ({
  ...json,
  selectedTab: 0,
  realtime: { interval: 1000, ...object(json["realtime"]), timewindowMs: ms },
  ...(json["aggregation"] ? {} : { aggregation: { type: "AVG", limit: 25_000 } }),
});

/** Sets a fixed interval. */
const withTimes = (json: Json, { from, to }: { from: number; to: number }): Json => ({
  ...json,
  selectedTab: 1,
  history: {
    interval: 1000,
    ...object(json["history"]),
    historyType: 1,
    fixedTimewindow: { startTimeMs: from, endTimeMs: to },
  },
  ...(json["aggregation"] ? {} : { aggregation: { type: "AVG", limit: 25_000 } }),
});

const withTime = (json: Json, { ms, fixed }: Pick<TimeWindow, "ms" | "fixed">): Json =>
  fixed ? withTimes(json, fixed) : withLength(json, ms);

export function withWindow(dashboard: Dashboard, time: Pick<TimeWindow, "ms" | "fixed">): Dashboard {
  const configuration = dashboard.configuration ?? {};
  return {
    ...dashboard,
    configuration: { ...configuration, timewindow: withTime(object(configuration["timewindow"]), time) },
  };
}

/** ThingsBoard actions on a single row of a widget. */
const OF_ROWS = ["rowClick", "rowDoubleClick", "actionCellButton"];

/** Click actions in ThingsBoard. The console shows each as a button. */
function stateLinksOf(config: Json): StateLink[] {
  return Object.entries(object(config["actions"])).flatMap(([source, all]) =>
    list(all)
      .filter(
        (one) =>
          ["openDashboardState", "updateDashboardState"].includes(text(one["type"])) &&
          text(one["targetDashboardStateId"]),
      )
      .map((one) => ({
        name: text(one["name"]) || text(one["targetDashboardStateId"]),
        state: text(one["targetDashboardStateId"]),
        hasEntity: one["setEntityId"] !== false,
        isOfRow: OF_ROWS.includes(source),
      })),
  );
}

export function kindOf(json: Json): Kind | undefined {
  const fqn = text(json["typeFullFqn"]) || text(json["typeAlias"]);
  const known = KINDS.find((kind) => NAMES[kind].fqn === fqn);
  if (known) return known;
  if (isHtml(json)) return "text";
  if (isMarked(json)) return object(object(json["config"])["settings"])["mapType"] === "image" ? undefined : "map";
  if (/gauge/.test(fqn)) return "gauge";
  if (/value_card|simple_card|label_card/.test(fqn)) return "value";
  if (json["type"] === "timeseries" && /chart|timeseries|flot|graph|line/.test(fqn)) return "chart";
  if (/^system\.maps(_v2)?\.(openstreetmap|google_maps|here_map|tencent_maps)$/.test(fqn) && json["type"] === "latest")
    return "map";
  if (/alarms_table/.test(fqn)) return "alarms";
  if (/attributes_card|latest|entities_table/.test(fqn) && json["type"] !== "alarm") return "table";
  return /switch|toggle|power_button/.test(fqn) && json["type"] === "rpc" ? "switch" : undefined;
}

export function sourcesOf(json: Json): Json[] {
  const config = object(json["config"]);
  const all = list(config["datasources"]);
  if (isMarked(json))
    return markersOf(json).map((one) => ({
      type: one["dsType"],
      deviceId: one["dsDeviceId"],
      entityAliasId: one["dsEntityAliasId"],
      filterId: one["dsFilterId"],
      dataKeys: list(one["additionalDataKeys"]),
    }));
  return all.length === 0 && config["alarmSource"] ? [object(config["alarmSource"])] : all;
}

/** ThingsBoard's newer map, which has its data in markers. */
const MARKED = "system.map";
const isMarked = (json: Json): boolean => json["typeFullFqn"] === MARKED;
const markersOf = (json: Json): Json[] =>
  isMarked(json) ? list(object(object(json["config"])["settings"])["markers"]) : [];

/** HTML cards. The console shows only their text and renders no foreign markup. */
export const isHtml = (json: Json): boolean => /^system\.cards\.html(_value)?_card$/.test(text(json["typeFullFqn"]));
const LETTERS: Record<string, string> = { amp: "&", lt: "<", gt: ">", quot: '"', apos: "'", nbsp: " ", deg: "°" };

/** Extracts text without an HTML parser, because a parser would process styles and event handlers. */
function plainText(html: string): string {
  const words = html
    .replace(/<!--.*?-->|<(style|script|template)\b.*?<\/\1\s*>/gis, "")
    .replace(/\s+/g, " ")
    .replace(/<br\b[^>]*>|<\/(p|div|li|tr|h\d)\s*>/gi, "\n")
    .replace(/<[^>]*>/g, "");
  const letters = words.replace(/&(?:#(\d{1,6})|(\w+));/g, (whole, code: string | undefined, name: string) =>
    code ? String.fromCodePoint(Number(code)) : (LETTERS[name] ?? whole),
  );
  return letters.replace(/ *\n\s*/g, "\n\n").trim();
}

/** Decimal digits. */
function digitsOf({ decimals }: Json): number | undefined {
  return typeof decimals === "number" && decimals >= 0 && decimals <= 15 ? Math.floor(decimals) : undefined;
}

const KEY_TYPES: WidgetKey["type"][] = ["attribute", "entityField"];
const keyType = (key: Json): WidgetKey["type"] => KEY_TYPES.find((type) => type === key["type"]) ?? "timeseries";

const keysOf = (source: Json, config: Json): WidgetSource["keys"] =>
  list(source["dataKeys"])
    .filter((key) => text(key["name"]))
    .map((key) => ({
      name: text(key["name"]),
      label: translated(text(key["label"])) || text(key["name"]),
      type: keyType(key),
      unit: text(key["units"]),
      digits: digitsOf(key) ?? digitsOf(config),
    }));

/** The form's notation for a key: telemetry by its name, other kinds with a prefix. */
export function keyWord({ name, type }: Pick<WidgetKey, "name" | "type">): string {
  return type === "timeseries"
    ? KEY_WORD.test(name)
      ? `telemetry:${name}`
      : name
    : `${type === "attribute" ? "attribute" : "field"}:${name}`;
}

const KEY_WORD = /^(telemetry|attribute|field):\s*/;

export function keyOf(word: string): Pick<WidgetKey, "name" | "type"> {
  const kind = KEY_WORD.exec(word)?.[1];
  return {
    name: word.replace(KEY_WORD, ""),
    type: kind === "attribute" ? "attribute" : kind === "field" ? "entityField" : "timeseries",
  };
}

/** Key of the entities of an alias that pass a filter. */
export const filtered = (alias: string, filter: string): string => `${alias} ${filter}`;

function entitiesOf(source: Json, { entityAliases, filters }: Configuration, view: View): EntityId[] {
  if (source["type"] === "device" && source["deviceId"])
    return [{ entityType: "DEVICE", id: text(source["deviceId"]) }];
  const [alias, filter] = [text(source["entityAliasId"]), text(source["filterId"])];
  return filters?.[filter] ? (view.found?.get(filtered(alias, filter)) ?? []) : aliased(alias, entityAliases, view);
}

function targetOf(config: Json, { entityAliases }: Configuration, view: View): EntityId | undefined {
  const target = object(config["targetDevice"]);
  if (target["deviceId"]) return { entityType: "DEVICE", id: text(target["deviceId"]) };
  return aliased(text(target["entityAliasId"]) || text(list(config["targetDeviceAliases"])[0]), entityAliases, view)[0];
}

const entityIn = (json: Json): EntityId[] =>
  json["id"] ? [{ entityType: text(json["entityType"]), id: text(json["id"]) }] : [];

export function aliased(id: string, aliases: Configuration["entityAliases"], view: View): EntityId[] {
  const found = view.found?.get(id);
  if (found) return found;
  const filter = object(object(aliases?.[id])["filter"]);
  // The entity of the state, or its default entity.
  if (filter["type"] === "stateEntity")
    return view.entity ? [view.entity] : entityIn(object(filter["defaultStateEntity"]));
  const single = object(filter["singleEntity"]);
  if (filter["type"] === "singleEntity" && single["id"]) return entityIn(single);
  const ids =
    filter["type"] === "entityList" && Array.isArray(filter["entityList"]) ? (filter["entityList"] as unknown[]) : [];
  return ids
    .filter((one) => typeof one === "string")
    .map((one) => ({ entityType: text(filter["entityType"]), id: one }));
}

const newState = (name: string, isRoot: boolean): Json => ({
  name,
  root: isRoot,
  layouts: {
    main: {
      widgets: {},
      gridSettings: {
        columns: COLUMNS,
        margin: 10,
        outerMargin: true,
        backgroundSizeMode: "100%",
        autoFillHeight: false,
      },
    },
  },
});

/** Derives the id from the name, like ThingsBoard. */
export function addState(dashboard: Dashboard, name: string): [Dashboard, string] {
  const configuration = dashboard.configuration ?? empty(dashboard.title).configuration ?? {};
  const all = Object.keys(configuration.states ?? {}).length
    ? configuration.states
    : { default: newState(dashboard.title, true) };
  const base = name.toLowerCase().replace(/[^\p{L}\p{N}]+/gu, "_") || "state";
  let id = base;
  for (let n = 1; id in (all ?? {}); n += 1) id = `${base}_${n}`;
  return [{ ...dashboard, configuration: { ...configuration, states: { ...all, [id]: newState(name, false) } } }, id];
}

export function renameState(dashboard: Dashboard, id: string, name: string): Dashboard {
  const next = structuredClone(dashboard);
  const state = next.configuration?.states?.[id];
  if (state) state["name"] = name;
  return next;
}

/** Removes a state and the widgets that are in no other state. The initial state stays. */
export function removeState(dashboard: Dashboard, id: string): Dashboard {
  const one = states(dashboard).find((state) => state.id === id);
  if (!one || one.isRoot) return dashboard;
  const next = widgets(dashboard, { state: id }).reduce(
    (before, { id: widgetId }) => remove(before, widgetId, { state: id }),
    structuredClone(dashboard),
  );
  delete next.configuration?.states?.[id];
  return next;
}

export const empty = (title: string): Dashboard => ({
  title,
  configuration: {
    widgets: {},
    states: { default: newState(title, true) },
    entityAliases: {},
    filters: {},
    timewindow: {
      selectedTab: 0,
      realtime: { interval: 1000, timewindowMs: 3_600_000 },
      aggregation: { type: "AVG", limit: 25_000 },
    },
    settings: { stateControllerId: "entity", showTitle: true, showDashboardTimewindow: true, toolbarAlwaysOpen: true },
  },
});

/** Adds or replaces a widget in the displayed state. */
export function put(dashboard: Dashboard, one: Widget, view: View = {}): Dashboard {
  const next = structuredClone(dashboard);
  const configuration = (next.configuration ??= empty(next.title).configuration ?? {});
  const before = object(configuration.widgets?.[one.id]);
  const names = one.kind ? NAMES[one.kind] : undefined;
  const was = widgets(dashboard, view).find((other) => other.id === one.id);
  const all = about(one);
  const isSameEntity = was !== undefined && idsOf(about(was)) === idsOf(all);
  const config = object(before["config"]);
  const type = names?.type ?? text(before["type"]);
  const sourceBefore = list(config["datasources"])[0] ?? {};
  const aliasId = isSameEntity
    ? (sourceBefore["entityAliasId"] ?? object(config["targetDevice"])["entityAliasId"])
    : all.length
      ? alias(configuration, all)
      : undefined;
  // Sources after the first are not in the form. They are preserved while the widget shows the same entity.
  const others = isSameEntity ? list(config["datasources"]).slice(1) : [];
  const source = {
    ...(isSameEntity ? sourceBefore : { type: "entity", name: "", entityAliasId: aliasId }),
    dataKeys: one.keys.map((word, at) => dataKey(word, at, list(sourceBefore["dataKeys"]))),
  };
  // An edited HTML card becomes Markdown.
  const isSame = one.kind !== undefined && kindOf(before) === one.kind && !isHtml(before);
  configuration.widgets = {
    ...configuration.widgets,
    [one.id]: {
      ...before,
      id: one.id,
      ...(names && !isSame ? { typeFullFqn: names.fqn, type: names.type } : {}),
      ...one.place,
      config: {
        ...config,
        title: one.title,
        showTitle: true,
        units: one.unit,
        ...timeOf(one, was, config),
        ...(isSame && isMarked(before)
          ? {}
          : type === "rpc"
            ? { targetDevice: { type: "entity", entityAliasId: aliasId } }
            : type === "alarm"
              ? { alarmSource: source, datasources: [source, ...others] }
              : { datasources: [source, ...others] }),
        settings: {
          ...object(config["settings"]),
          ...(one.kind === "gauge" ? { minValue: one.min, maxValue: one.max, tickMin: one.min, tickMax: one.max } : {}),
          ...(one.kind === "switch" &&
          (was?.kind !== "switch" ||
            JSON.stringify(one.switchActions) !== JSON.stringify(was.switchActions) ||
            JSON.stringify(one.stateSource) !== JSON.stringify(was.stateSource))
            ? switchSettings(one, object(config["settings"]))
            : {}),
          ...(one.kind === "text" ? { markdownTextPattern: one.text, useMarkdownTextFunction: false } : {}),
          ...(isSame && isMarked(before)
            ? { markers: markersWith(one, isSameEntity ? undefined : aliasId, markersOf(before)) }
            : one.kind === "map"
              ? { latKeyName: one.latitudeKey, lngKeyName: one.longitudeKey }
              : {}),
        },
      },
    },
  };
  place(configuration, one, view);
  return next;
}

/** The form edits the first marker. The others are removed if the entity changes. */
function markersWith({ latitudeKey, longitudeKey }: Widget, aliasId: unknown, [first, ...others]: Json[]): Json[] {
  const key = (before: unknown, name: string) => ({ type: "attribute", ...object(before), name, label: name });
  const keys = { xKey: key(first?.["xKey"], latitudeKey), yKey: key(first?.["yKey"], longitudeKey) };
  return aliasId === undefined
    ? [{ ...first, ...keys }, ...others]
    : [{ ...first, ...keys, dsType: "entity", dsDeviceId: null, dsFilterId: null, dsEntityAliasId: aliasId }];
}

/** The time window of a chart, if it differs from before. */
function timeOf(one: Widget, was: Widget | undefined, config: Json): Json {
  if (
    !hasTime(one.kind) ||
    (was &&
      was.hasOwnWindow === one.hasOwnWindow &&
      was.window.ms === one.window.ms &&
      JSON.stringify(was.window.fixed) === JSON.stringify(one.window.fixed))
  )
    return {};
  return one.hasOwnWindow
    ? { useDashboardTimewindow: false, timewindow: withTime(object(config["timewindow"]), one.window) }
    : { useDashboardTimewindow: true };
}

function dataKey(word: string, at: number, before: Json[]): Json {
  const { name, type } = keyOf(word);
  return (
    before.find((key) => key["name"] === name && keyType(key) === type) ?? {
      name,
      type,
      label: name,
      color: ["#0a6382", "#b0561a", "#a8231b", "#6a4fa3"][at % 4],
      settings: {},
    }
  );
}

/** The entity or entities of a widget. */
const about = ({ entity, entities }: Widget): EntityId[] => (entities.length > 1 ? entities : entity ? [entity] : []);
const idsOf = (entities: EntityId[]): string => entities.map(({ id }) => id).join(" ");

function alias(configuration: Configuration, entities: EntityId[]): string {
  const found = Object.keys(configuration.entityAliases ?? {}).find(
    (id) =>
      object(object(configuration.entityAliases?.[id])["filter"])["type"] !== "stateEntity" &&
      idsOf(aliased(id, configuration.entityAliases, {})) === idsOf(entities),
  );
  if (found) return found;
  const [entity] = entities;
  const filter =
    entities.length === 1
      ? { type: "singleEntity", resolveMultiple: false, singleEntity: entity }
      : {
          type: "entityList",
          resolveMultiple: true,
          entityType: entity?.entityType,
          entityList: entities.map((one) => one.id),
        };
  const id = crypto.randomUUID?.() ?? String(Date.now());
  configuration.entityAliases = { ...configuration.entityAliases, [id]: { id, alias: idsOf(entities), filter } };
  return id;
}

function place(configuration: Configuration, one: Widget, view: View): void {
  const states = (configuration.states ??= {});
  const [name, state] = stateOf(configuration, view.state) ?? ["default", { name: "default", root: true }];
  const layouts = object(state["layouts"]);
  // The layout that contains the widget. The console shows ThingsBoard's second layout next to the first.
  const [at] = Object.entries(layouts).find(([, layout]) => one.id in object(object(layout)["widgets"])) ?? ["main"];
  const layout = object(layouts[at]);
  const all = object(layout["widgets"]);
  states[name] = {
    ...state,
    layouts: {
      ...layouts,
      [at]: { ...layout, widgets: { ...all, [one.id]: { ...object(all[one.id]), ...one.place } } },
    },
  };
}

/** Removes a widget from the displayed state, and entirely if no other state has it. */
export function remove(dashboard: Dashboard, id: string, view: View = {}): Dashboard {
  const next = structuredClone(dashboard);
  const configuration = next.configuration ?? {};
  const state = stateOf(configuration, view.state)?.[1];
  for (const layout of Object.values(object(state?.["layouts"]))) delete object(object(layout)["widgets"])[id];
  if (!Object.values(configuration.states ?? {}).some((other) => id in placesOf(other)))
    delete configuration.widgets?.[id];
  return next;
}

/** Places a new widget below all others. */
export function fresh(kind: Kind, all: Widget[]): Widget {
  const row = Math.max(0, ...all.map((one) => one.place.row + one.place.sizeY));
  return {
    id: crypto.randomUUID?.() ?? String(Date.now()),
    kind,
    type: NAMES[kind].fqn,
    title: "",
    hasTitle: true,
    entity: undefined,
    entities: [],
    sources: [],
    window: { ms: HOUR_MS, fixed: undefined, aggregation: "AVG" },
    hasOwnWindow: false,
    stateLinks: [],
    keys: [],
    unit: "",
    min: 0,
    max: 100,
    switchActions: {
      on: { by: "rpc", name: "setValue", value: true },
      off: { by: "rpc", name: "setValue", value: false },
    },
    stateSource: { from: "none", name: "", on: true },
    text: "",
    latitudeKey: "latitude",
    longitudeKey: "longitude",
    place: { row, col: 0, ...size(kind) },
  };
}

/** Size of a new widget. */
export function size(kind: Kind): { sizeX: number; sizeY: number } {
  const [sizeX, sizeY] = SIZES[kind];
  return { sizeX, sizeY };
}

/** Moves or resizes a widget. Widgets in its way move down. */
export function settle(dashboard: Dashboard, id: string, to: Place, view: View = {}): Dashboard {
  const all = widgets(dashboard, view);
  const moved = all.find((one) => one.id === id);
  if (!moved) return dashboard;
  const done: Widget[] = [{ ...moved, place: to }];
  for (const one of all.filter((other) => other.id !== id)) {
    let at = one.place;
    for (
      let hit = done.find((other) => overlap(other.place, at));
      hit;
      hit = done.find((other) => overlap(other.place, at))
    )
      at = { ...at, row: hit.place.row + hit.place.sizeY };
    done.push({ ...one, place: at });
  }
  return done
    .filter((one) => all.find((before) => before.id === one.id)?.place !== one.place)
    .reduce((before, one) => moveTo(before, one, view), dashboard);
}

function moveTo(dashboard: Dashboard, one: Widget, view: View): Dashboard {
  const next = structuredClone(dashboard);
  const configuration = next.configuration ?? {};
  Object.assign(object(configuration.widgets?.[one.id]), one.place);
  place(configuration, one, view);
  return next;
}

const overlap = (a: Place, b: Place): boolean =>
  a.col < b.col + b.sizeX && b.col < a.col + a.sizeX && a.row < b.row + b.sizeY && b.row < a.row + a.sizeY;
