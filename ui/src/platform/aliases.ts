// Whom the aliases of a dashboard stand for where the server has to look: devices of a type, what is related, what has a name.
import { ask } from "./api";
import type { Dashboard } from "./dashboard";
import type { EntityId, Json, Page } from "./model";

/** Filters that the server looks for. The others name their entities, or are not known. */
export const SOUGHT = ["entityName", "entityType", "deviceType", "assetType", "relationsQuery", "deviceSearchQuery", "assetSearchQuery", "apiUsageState"];
const FOUND_MAX = 100;

export interface Found { entities: Map<string, EntityId[]>; /** Why some were not found, in words. */ failed: string[] }

/** By alias. `current` is what the state is about. */
export async function find({ configuration }: Dashboard, current: EntityId | undefined, signal: AbortSignal): Promise<Found> {
  const failed: string[] = [];
  const sought = Object.entries(configuration?.entityAliases ?? {}).flatMap(([id, alias]): [string, Json, string][] => {
    const filter = (alias["filter"] ?? {}) as Json;
    return SOUGHT.includes(String(filter["type"])) ? [[id, filter, String(alias["alias"] ?? id)]] : [];
  });
  const entities = await Promise.all(sought.map(async ([id, filter, name]): Promise<[string, EntityId[]]> => {
    const root = filter["rootStateEntity"] === true ? (current ?? filter["defaultStateEntity"]) : filter["rootEntity"];
    // What is related to nothing is nothing.
    if (filter["rootStateEntity"] === true && !(root as EntityId | null | undefined)?.id) return [id, []];
    try {
      return [id, await query({ ...filter, ...(root ? { rootEntity: root } : {}) }, filter["resolveMultiple"] === false ? 1 : FOUND_MAX, signal)];
    } catch (error) {
      failed.push(`${name}: ${error instanceof Error ? error.message : String(error)}`);
      return [id, []];
    }
  }));
  return { entities: new Map(entities), failed };
}

async function query(entityFilter: Json, pageSize: number, signal: AbortSignal): Promise<EntityId[]> {
  const name = { type: "ENTITY_FIELD", key: "name" };
  const body = { entityFilter, pageLink: { page: 0, pageSize, sortOrder: { key: name, direction: "ASC" } }, entityFields: [name], latestValues: [] };
  return (await ask<Page<{ entityId: EntityId }>>("POST", "/api/entitiesQuery/find", { body, signal })).data.map((one) => one.entityId);
}
