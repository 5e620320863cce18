// Lists what the console does not support in an imported ThingsBoard dashboard, per widget.
import { QUERIED_FILTERS } from "./aliases";
import {
  hasTime,
  isHtml,
  kindOf,
  list,
  object,
  sourcesOf,
  text,
  updates,
  type Configuration,
  type Dashboard,
  type Kind,
} from "./dashboard";
import type { Json } from "./model";

const NAMED = ["singleEntity", "entityList", "stateEntity"];
const KEYS = ["timeseries", "attribute", "entityField"];

export interface UnsupportedWidget {
  title: string;
  what: string[];
}

export function unsupportedParts({ configuration }: Dashboard): UnsupportedWidget[] {
  return Object.values(configuration?.widgets ?? {})
    .map((json) => ({
      title: text(object(json["config"])["title"]) || "Untitled widget",
      what: ofWidget(json, configuration ?? {}),
    }))
    .filter(({ what }) => what.length > 0)
    .sort((a, b) => a.title.localeCompare(b.title));
}

function ofWidget(json: Json, configuration: Configuration): string[] {
  const kind = kindOf(json);
  if (!kind)
    return [
      "widget type not supported: " +
        `${text(json["typeFullFqn"]) || text(json["typeAlias"]) || text(json["type"]) || "unknown"}`,
    ];
  const settings = object(object(json["config"])["settings"]);
  const sources = kind === "switch" ? [object(object(json["config"])["targetDevice"])] : sourcesOf(json);
  return [
    ...new Set([
      ...(isHtml(json) ? ["only the text of the HTML is shown"] : []),
      ...ofSettings(settings, kind),
      ...sources.flatMap((source) => [
        ...ofSource(source, configuration),
        ...list(source["dataKeys"]).flatMap((key) => ofKey(key, kind)),
      ]),
    ]),
  ];
}

/** Functions are scripts of ThingsBoard's web application. The console does not run them. */
function ofSettings(settings: Json, kind: Kind): string[] {
  if (kind === "text" && settings["useMarkdownTextFunction"] === true) return ["the text function is not run"];
  if (kind !== "switch") return [];
  const isFunction = (json: unknown) => object(json)["type"] === "FUNCTION";
  const hasFunction = [updates(settings, true), updates(settings, false)].some((one) => isFunction(one["valueToData"]));
  return [
    ...(isFunction(object(settings["initialState"])["dataToValue"])
      ? ["the function that converts the state is not run: true, 1 and on mean on"]
      : []),
    ...(hasFunction ? ["the function that converts the sent value is not run: the switch sends true or false"] : []),
  ];
}

function ofSource(source: Json, { entityAliases, filters }: Configuration): string[] {
  const type = text(source["type"]);
  if (type && !["entity", "device"].includes(type)) return [`data source type not supported: ${type}`];
  const unsupported =
    source["filterId"] && !filters?.[text(source["filterId"])]
      ? ["the filter is missing in the dashboard: all entities of the alias are shown"]
      : [];
  const id = text(source["entityAliasId"]);
  if (!id) return unsupported;
  const alias = entityAliases?.[id];
  if (!alias) return [...unsupported, "the alias is missing in the dashboard"];
  const filter = object(alias["filter"]);
  const single = object(filter["singleEntity"]);
  const name = text(alias["alias"]) || id;
  if (![...NAMED, ...QUERIED_FILTERS].includes(text(filter["type"])))
    unsupported.push(`type of alias ${name} not supported: ${text(filter["type"]) || "unknown"}`);
  else if (filter["type"] === "singleEntity" && text(single["entityType"]).startsWith("CURRENT_"))
    unsupported.push(`entity of alias ${name} not supported: ${text(single["entityType"])}`);
  return unsupported;
}

function ofKey(key: Json, kind: Kind): string[] {
  const [name, type] = [text(key["name"]), text(key["type"]) || "timeseries"];
  if (kind === "alarms" || kind === "switch" || kind === "map") return [];
  if (!KEYS.includes(type)) return [`type of key ${name} not supported: ${type}`];
  if (type !== "timeseries" && hasTime(kind))
    return [`key ${name} has no history: it is ${type === "attribute" ? "an attribute" : "an entity field"}`];
  const isOfCells = object(key["settings"])["useCellContentFunction"] === true;
  return [
    ...(key["usePostProcessing"] === true || text(key["postFuncBody"])
      ? [`the post-processing function of key ${name} is not run`]
      : []),
    ...(isOfCells ? [`the cell function of key ${name} is not run`] : []),
  ];
}
