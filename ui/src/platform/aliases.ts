// Resolves dashboard aliases that need a query: entities by type, relation or name, and entities selected by a filter.
import { ask, deviceInfo } from "./api";
import { aliased, filtered, list, object, sourcesOf, text, type Configuration, type View } from "./dashboard";
import type { EntityId, Json, Page } from "./model";
import { tenancy } from "./tenancy.svelte";

/** Alias filters that need a query. The others name their entities, or are unknown. */
export const QUERIED_FILTERS = [
  "entityName",
  "entityType",
  "deviceType",
  "assetType",
  "relationsQuery",
  "deviceSearchQuery",
  "assetSearchQuery",
  "apiUsageState",
];
const FOUND_MAX = 100;
/** Maps ThingsBoard's placeholders in texts to entity fields. */
export const FIELDS: Record<string, string> = {
  entityName: "name",
  deviceName: "name",
  entityLabel: "label",
  deviceLabel: "label",
};

export interface Found {
  entities: Map<string, EntityId[]>;
  /** Reasons why some aliases could not be resolved. */ failed: string[];
}

/** Aliases and filters of a dashboard that need a query. */
export interface AliasQuery {
  aliases: Record<string, Json>;
  filters: Record<string, Json>;
  /** Aliases that are used with a filter. */ pairs: [string, string][];
}

export function aliasQuery({ entityAliases, filters, widgets }: Configuration): AliasQuery {
  const pairs = Object.values(widgets ?? {})
    .flatMap(sourcesOf)
    .map((source): [string, string] => [text(source["entityAliasId"]), text(source["filterId"])])
    .filter(([alias, filter]) => entityAliases?.[alias] && filters?.[filter]);
  return {
    aliases: entityAliases ?? {},
    filters: filters ?? {},
    pairs: [...new Map(pairs.map((pair) => [filtered(...pair), pair])).values()],
  };
}

/** Results by alias, and by alias with filter. `current` is the entity of the dashboard state. */
export async function find(
  { aliases, filters, pairs }: AliasQuery,
  current: EntityId | undefined,
  signal: AbortSignal,
): Promise<Found> {
  const failed: string[] = [];
  const view: View = current ? { entity: current } : {};
  const isQueried = (id: string) => QUERIED_FILTERS.includes(text(object(aliases[id]?.["filter"])["type"]));
  const ways = [
    ...Object.keys(aliases)
      .filter(isQueried)
      .map((id): [string, string, string | undefined] => [id, id, undefined]),
    ...pairs.map(([id, filter]): [string, string, string] => [filtered(id, filter), id, filter]),
  ];
  const look = async (alias: string, filter: string | undefined): Promise<EntityId[]> => {
    // A screen key cannot run queries. The server resolves the aliases of its dashboard.
    if (tenancy.isScreen) return ofScreen(alias, filter, current, signal);
    const wanted = isQueried(alias)
      ? queryOf(object(aliases[alias]?.["filter"]), current)
      : listed(aliased(alias, aliases, view));
    const keys = filter === undefined ? [] : keyFilters(filters[filter] ?? {});
    return wanted ? query(wanted, keys, wanted["resolveMultiple"] === false ? 1 : FOUND_MAX, signal) : [];
  };
  const entities = await Promise.all(
    ways.map(async ([id, alias, filter]): Promise<[string, EntityId[]]> => {
      try {
        return [id, await look(alias, filter)];
      } catch (error) {
        failed.push(
          `${text(aliases[alias]?.["alias"]) || alias}: ${error instanceof Error ? error.message : String(error)}`,
        );
        return [id, []];
      }
    }),
  );
  return { entities: new Map(entities), failed };
}

function queryOf(filter: Json, current: EntityId | undefined): Json | undefined {
  const root = filter["rootStateEntity"] === true ? (current ?? filter["defaultStateEntity"]) : filter["rootEntity"];
  // Without a root entity there are no related entities.
  if (filter["rootStateEntity"] === true && !(root as EntityId | null | undefined)?.id) return undefined;
  return { ...filter, ...(root ? { rootEntity: root } : {}) };
}

function listed(entities: EntityId[]): Json | undefined {
  const [first] = entities;
  return first && { type: "entityList", entityType: first.entityType, entityList: entities.map(({ id }) => id) };
}

/** Converts filters to the query format: one per condition, without ThingsBoard's form data. */
function keyFilters(filter: Json): Json[] {
  return list(filter["keyFilters"]).flatMap(({ key, valueType, predicates, predicate }) =>
    predicate
      ? [{ key, valueType, predicate }]
      : list(predicates).map((one) => ({ key, valueType, predicate: plain(one) })),
  );
}

function plain(info: Json): Json {
  const predicate = object(info["keyFilterPredicate"] ?? info);
  return predicate["type"] === "COMPLEX"
    ? { ...predicate, predicates: list(predicate["predicates"]).map(plain) }
    : predicate;
}

function ofScreen(
  alias: string,
  filter: string | undefined,
  current: EntityId | undefined,
  signal: AbortSignal,
): Promise<EntityId[]> {
  const state = current ? { entityType: current.entityType, entityId: current.id } : {};
  return ask<EntityId[]>("GET", "/api/screen/entities", {
    query: { alias, ...(filter === undefined ? {} : { filter }), ...state },
    signal,
  });
}

/** Returns fields of entities, by entity. */
export async function fields(
  entities: EntityId[],
  names: string[],
  signal: AbortSignal,
): Promise<Map<string, Record<string, string>>> {
  // A screen key cannot run queries. It reads the devices of its dashboard.
  if (tenancy.isScreen) {
    const infos = await Promise.all(
      entities
        .filter(({ entityType }) => entityType === "DEVICE")
        .map(({ id }) => deviceInfo(id, signal).catch(() => undefined)),
    );
    return new Map(
      infos.flatMap((info) =>
        info ? [[info.id.id, Object.fromEntries(names.map((name) => [name, String(info[name] ?? "")]))] as const] : [],
      ),
    );
  }
  const entityFields = names.map((key) => ({ type: "ENTITY_FIELD", key }));
  const kinds = [...new Set(entities.map(({ entityType }) => entityType))];
  const pages = await Promise.all(
    kinds.map((kind) => {
      const entityFilter = listed(entities.filter(({ entityType }) => entityType === kind));
      return ask<Page<Row>>("POST", "/api/entitiesQuery/find", {
        body: { entityFilter, pageLink: { page: 0, pageSize: FOUND_MAX }, entityFields, latestValues: [] },
        signal,
      });
    }),
  );
  return new Map(
    pages.flatMap(({ data }) =>
      data.map(({ entityId, latest }) => [
        entityId.id,
        Object.fromEntries(Object.entries(latest["ENTITY_FIELD"] ?? {}).map(([name, { value }]) => [name, value])),
      ]),
    ),
  );
}

interface Row {
  entityId: EntityId;
  latest: Record<string, Record<string, { value: string }>>;
}

async function query(
  entityFilter: Json,
  keyFilters: Json[],
  pageSize: number,
  signal: AbortSignal,
): Promise<EntityId[]> {
  const name = { type: "ENTITY_FIELD", key: "name" };
  const body = {
    entityFilter,
    keyFilters,
    pageLink: { page: 0, pageSize, sortOrder: { key: name, direction: "ASC" } },
    entityFields: [name],
    latestValues: [],
  };
  return (await ask<Page<Row>>("POST", "/api/entitiesQuery/find", { body, signal })).data.map((one) => one.entityId);
}
