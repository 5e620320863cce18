// What of a dashboard the console does not show, in words, widget by widget: for whoever brings one from ThingsBoard.
import { SOUGHT } from "./aliases";
import { hasTime, isHtml, kindOf, list, object, sourcesOf, text, updates, type Configuration, type Dashboard, type Kind } from "./dashboard";
import type { Json } from "./model";

const NAMED = ["singleEntity", "entityList", "stateEntity"];
const KEYS = ["timeseries", "attribute", "entityField"];

export interface Lack { title: string; what: string[] }

export function lacking({ configuration }: Dashboard): Lack[] {
  return Object.values(configuration?.widgets ?? {})
    .map((json) => ({ title: text(object(json["config"])["title"]) || "A widget without a title", what: ofWidget(json, configuration ?? {}) }))
    .filter(({ what }) => what.length > 0)
    .sort((a, b) => a.title.localeCompare(b.title));
}

function ofWidget(json: Json, configuration: Configuration): string[] {
  const kind = kindOf(json);
  if (!kind) return [`the console has no widget of type ${text(json["typeFullFqn"]) || text(json["typeAlias"]) || text(json["type"]) || "unknown"}`];
  const settings = object(object(json["config"])["settings"]);
  const sources = kind === "switch" ? [object(object(json["config"])["targetDevice"])] : sourcesOf(json);
  return [...new Set([...(isHtml(json) ? ["of its HTML the text is shown"] : []), ...ofSettings(settings, kind), ...sources.flatMap((source) => [...ofSource(source, configuration), ...list(source["dataKeys"]).flatMap((key) => ofKey(key, kind))])])];
}

/** Functions are scripts of ThingsBoard's own pages, which the console does not run. */
function ofSettings(settings: Json, kind: Kind): string[] {
  if (kind === "text" && settings["useMarkdownTextFunction"] === true) return ["its text is made by a function, which is not run"];
  if (kind !== "switch") return [];
  const isFunction = (json: unknown) => object(json)["type"] === "FUNCTION";
  const told = [updates(settings, true), updates(settings, false)].some((one) => isFunction(one["valueToData"]));
  return [
    ...(isFunction(object(settings["initialState"])["dataToValue"]) ? ["the function that tells on from off is not run: true, 1 and on are on"] : []),
    ...(told ? ["the function that makes what it sends is not run: it sends true or false"] : []),
  ];
}

function ofSource(source: Json, { entityAliases, filters }: Configuration): string[] {
  const type = text(source["type"]);
  if (type && !["entity", "device"].includes(type)) return [`its datasource is of type ${type}`];
  const lacks = source["filterId"] && !filters?.[text(source["filterId"])] ? ["its filter is not in the dashboard: all entities of the alias are shown"] : [];
  const id = text(source["entityAliasId"]);
  if (!id) return lacks;
  const alias = entityAliases?.[id];
  if (!alias) return [...lacks, "its alias is not in the dashboard"];
  const filter = object(alias["filter"]);
  const single = object(filter["singleEntity"]);
  const name = text(alias["alias"]) || id;
  if (![...NAMED, ...SOUGHT].includes(text(filter["type"]))) lacks.push(`its alias ${name} is of type ${text(filter["type"]) || "unknown"}`);
  else if (filter["type"] === "singleEntity" && text(single["entityType"]).startsWith("CURRENT_")) lacks.push(`its alias ${name} is ${text(single["entityType"])}`);
  return lacks;
}

function ofKey(key: Json, kind: Kind): string[] {
  const [name, type] = [text(key["name"]), text(key["type"]) || "timeseries"];
  if (kind === "alarms" || kind === "switch" || kind === "map") return [];
  if (!KEYS.includes(type)) return [`its key ${name} is of type ${type}`];
  if (type !== "timeseries" && hasTime(kind)) return [`its key ${name} is ${type === "attribute" ? "an attribute" : "a field of the entity"}, which has no history`];
  const isOfCells = object(key["settings"])["useCellContentFunction"] === true;
  return [
    ...(key["usePostProcessing"] === true || text(key["postFuncBody"]) ? [`its key ${name} is shown without its post-processing function`] : []),
    ...(isOfCells ? [`its key ${name} is shown without the function of its cells`] : []),
  ];
}
