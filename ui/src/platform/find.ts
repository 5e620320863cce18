// Searches entities by a part of their name, and looks up names.

import type { Named } from "../components/devices/EntitySelect.svelte";
import { fields } from "./aliases";
import { ask, type Listing } from "./api";
import type { EntityId, Page } from "./model";

interface Found {
  entityId: EntityId;
  latest: Record<string, Record<string, { value: string }>>;
}

export const find =
  (entityType: string) =>
  async (
    { page, pageSize, textSearch }: Listing,
    signal: AbortSignal,
  ): Promise<{ data: Named[]; hasNext: boolean }> => {
    const name = { type: "ENTITY_FIELD", key: "name" };
    const pageLink = { page, pageSize, textSearch, sortOrder: { key: name, direction: "ASC" } };
    const body = { entityFilter: { type: "entityType", entityType }, pageLink, entityFields: [name], latestValues: [] };
    const found = await ask<Page<Found>>("POST", "/api/entitiesQuery/find", { body, signal });
    return {
      hasNext: found.hasNext,
      data: found.data.map(({ entityId, latest }) => ({
        id: entityId,
        name: latest["ENTITY_FIELD"]?.["name"]?.value ?? entityId.id,
      })),
    };
  };

/** Returns undefined if the entity does not exist or is not visible. */
export async function nameOf(entity: EntityId, signal: AbortSignal): Promise<string | undefined> {
  return (await fields([entity], ["name"], signal)).get(entity.id)?.["name"];
}
