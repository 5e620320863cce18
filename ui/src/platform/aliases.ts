// Whom the aliases of a dashboard stand for where the server has to look: devices of a type, what is related, what has a name, what a filter lets through.
import { ask, deviceInfo } from "./api";
import { aliased, filtered, list, object, sourcesOf, text, type Configuration, type View } from "./dashboard";
import type { EntityId, Json, Page } from "./model";
import { tenancy } from "./tenancy.svelte";

/** Filters that the server looks for. The others name their entities, or are not known. */
export const SOUGHT = ["entityName", "entityType", "deviceType", "assetType", "relationsQuery", "deviceSearchQuery", "assetSearchQuery", "apiUsageState"];
const FOUND_MAX = 100;
/** ThingsBoard's names for fields in texts. */
export const FIELDS: Record<string, string> = { entityName: "name", deviceName: "name", entityLabel: "label", deviceLabel: "label" };

export interface Found { entities: Map<string, EntityId[]>; /** Why some were not found, in words. */ failed: string[] }

/** Of a dashboard, what is to be looked for. */
export interface Asked { aliases: Record<string, Json>; filters: Record<string, Json>; /** Those of an alias that a filter lets through. */ pairs: [string, string][] }

export function asked({ entityAliases, filters, widgets }: Configuration): Asked {
  const pairs = Object.values(widgets ?? {}).flatMap(sourcesOf).map((source): [string, string] => [text(source["entityAliasId"]), text(source["filterId"])])
    .filter(([alias, filter]) => entityAliases?.[alias] && filters?.[filter]);
  return { aliases: entityAliases ?? {}, filters: filters ?? {}, pairs: [...new Map(pairs.map((pair) => [filtered(...pair), pair])).values()] };
}

/** By alias, and by alias with its filter. `current` is what the state is about. */
export async function find({ aliases, filters, pairs }: Asked, current: EntityId | undefined, signal: AbortSignal): Promise<Found> {
  const failed: string[] = [];
  const view: View = current ? { entity: current } : {};
  const isSought = (id: string) => SOUGHT.includes(text(object(aliases[id]?.["filter"])["type"]));
  const ways = [...Object.keys(aliases).filter(isSought).map((id): [string, string, string | undefined] => [id, id, undefined]), ...pairs.map(([id, filter]): [string, string, string] => [filtered(id, filter), id, filter])];
  const look = async (alias: string, filter: string | undefined): Promise<EntityId[]> => {
    // A screen may not query: it names what its dashboard asks for.
    if (tenancy.isScreen) return ofScreen(alias, filter, current, signal);
    const wanted = isSought(alias) ? sought(object(aliases[alias]?.["filter"]), current) : listed(aliased(alias, aliases, view));
    const keys = filter === undefined ? [] : keyFilters(filters[filter] ?? {});
    return wanted ? query(wanted, keys, wanted["resolveMultiple"] === false ? 1 : FOUND_MAX, signal) : [];
  };
  const entities = await Promise.all(ways.map(async ([id, alias, filter]): Promise<[string, EntityId[]]> => {
    try {
      return [id, await look(alias, filter)];
    } catch (error) {
      failed.push(`${text(aliases[alias]?.["alias"]) || alias}: ${error instanceof Error ? error.message : String(error)}`);
      return [id, []];
    }
  }));
  return { entities: new Map(entities), failed };
}

function sought(filter: Json, current: EntityId | undefined): Json | undefined {
  const root = filter["rootStateEntity"] === true ? (current ?? filter["defaultStateEntity"]) : filter["rootEntity"];
  // What is related to nothing is nothing.
  if (filter["rootStateEntity"] === true && !(root as EntityId | null | undefined)?.id) return undefined;
  return { ...filter, ...(root ? { rootEntity: root } : {}) };
}

function listed(entities: EntityId[]): Json | undefined {
  const [first] = entities;
  return first && { type: "entityList", entityType: first.entityType, entityList: entities.map(({ id }) => id) };
}

/** As a query has them: one of each condition, without what ThingsBoard's own form keeps beside them. */
function keyFilters(filter: Json): Json[] {
  return list(filter["keyFilters"]).flatMap(({ key, valueType, predicates, predicate }) => (predicate ? [{ key, valueType, predicate }] : list(predicates).map((one) => ({ key, valueType, predicate: plain(one) }))));
}

function plain(info: Json): Json {
  const predicate = object(info["keyFilterPredicate"] ?? info);
  return predicate["type"] === "COMPLEX" ? { ...predicate, predicates: list(predicate["predicates"]).map(plain) } : predicate;
}

function ofScreen(alias: string, filter: string | undefined, current: EntityId | undefined, signal: AbortSignal): Promise<EntityId[]> {
  const state = current ? { entityType: current.entityType, entityId: current.id } : {};
  return ask<EntityId[]>("GET", "/api/screen/entities", { query: { alias, ...(filter === undefined ? {} : { filter }), ...state }, signal });
}

/** Fields of entities, by entity. */
export async function fields(entities: EntityId[], names: string[], signal: AbortSignal): Promise<Map<string, Record<string, string>>> {
  // A screen may not query; it reads the devices that are on its dashboard.
  if (tenancy.isScreen) {
    const infos = await Promise.all(entities.filter(({ entityType }) => entityType === "DEVICE").map(({ id }) => deviceInfo(id, signal).catch(() => undefined)));
    return new Map(infos.flatMap((info) => (info ? [[info.id.id, Object.fromEntries(names.map((name) => [name, String(info[name] ?? "")]))] as const] : [])));
  }
  const entityFields = names.map((key) => ({ type: "ENTITY_FIELD", key }));
  const kinds = [...new Set(entities.map(({ entityType }) => entityType))];
  const pages = await Promise.all(kinds.map((kind) => {
    const entityFilter = listed(entities.filter(({ entityType }) => entityType === kind));
    return ask<Page<Row>>("POST", "/api/entitiesQuery/find", { body: { entityFilter, pageLink: { page: 0, pageSize: FOUND_MAX }, entityFields, latestValues: [] }, signal });
  }));
  return new Map(pages.flatMap(({ data }) => data.map(({ entityId, latest }) => [entityId.id, Object.fromEntries(Object.entries(latest["ENTITY_FIELD"] ?? {}).map(([name, { value }]) => [name, value]))])));
}

interface Row { entityId: EntityId; latest: Record<string, Record<string, { value: string }>> }

async function query(entityFilter: Json, keyFilters: Json[], pageSize: number, signal: AbortSignal): Promise<EntityId[]> {
  const name = { type: "ENTITY_FIELD", key: "name" };
  const body = { entityFilter, keyFilters, pageLink: { page: 0, pageSize, sortOrder: { key: name, direction: "ASC" } }, entityFields: [name], latestValues: [] };
  return (await ask<Page<Row>>("POST", "/api/entitiesQuery/find", { body, signal })).data.map((one) => one.entityId);
}
