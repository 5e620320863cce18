// Device platform requests of the console, sent with a login of the tenant.
import { part, RequestError, requestAs, type RequestOptions } from "../api/request";
import type { Dashboard } from "./dashboard";
import type { Metadata, RuleChain } from "./chain";
import type {
  Aggregation,
  Alarm,
  AlarmComment,
  Attribute,
  AuditEntry,
  Customer,
  Device,
  DeviceCredentials,
  DeviceInfo,
  EntityId,
  Json,
  Page,
  PlatformUser,
  Point,
  Profile,
  ProfileInfo,
  Relation,
  Scope,
} from "./model";
import type { ScriptType } from "./nodetypes";
import { isOfConsole, tenancy } from "./tenancy.svelte";

export async function ask<T>(method: string, path: string, options: RequestOptions = {}): Promise<T> {
  const token = await tenancy.token();
  return requestAs<T>(
    { headers: { "X-Authorization": `Bearer ${token}` }, ended: () => tenancy.rejectToken() },
    method,
    path,
    options,
  );
}

export interface Listing {
  page: number;
  pageSize: number;
  textSearch?: string | undefined;
  sortProperty?: string;
  sortOrder?: "ASC" | "DESC";
}

/** Customer users see only the entities of their customer. */
const owner = (): string => (tenancy.customer ? `customer/${part(tenancy.customer)}` : "tenant");
const of = (entity: EntityId): string => `${entity.entityType}/${entity.id}`;
export const device = (id: string): EntityId => ({ entityType: "DEVICE", id });

export const devices = (
  query: Listing & { active?: boolean | undefined; deviceProfileId?: string | undefined },
  signal?: AbortSignal,
) => ask<Page<DeviceInfo>>("GET", `/api/${owner()}/deviceInfos`, { query: { ...query }, signal });
export const deviceInfo = (id: string, signal?: AbortSignal) =>
  ask<DeviceInfo>("GET", `/api/device/info/${part(id)}`, { signal });
/** ThingsBoard's id for "no customer". */
const NO_CUSTOMER: EntityId = { entityType: "CUSTOMER", id: "13814000-1dd2-11b2-8080-808080808080" };
export interface DeviceChange {
  name: string;
  label: string | null;
  deviceProfileId: EntityId;
  customerId: EntityId | null;
  additionalInfo: Json;
}
/** The server refuses the change if the device has changed since it was loaded. */
export function changeDevice(one: DeviceInfo, change: DeviceChange): Promise<Device> {
  const { active: _, deviceProfileName: __, customerTitle: ___, customerIsPublic: ____, ...device } = one;
  return ask("POST", "/api/device", { body: { ...device, ...change, customerId: change.customerId ?? NO_CUSTOMER } });
}
export const customers = (query: Listing, signal?: AbortSignal) =>
  ask<Page<Customer>>("GET", "/api/customers", { query: { ...query }, signal });
export const createDevice = (
  one: { name: string; label?: string; deviceProfileId?: EntityId; additionalInfo?: Json },
  token: string,
) =>
  ask<Device>("POST", "/api/device-with-credentials", {
    body: { device: one, credentials: { credentialsType: "ACCESS_TOKEN", credentialsId: token } },
  });
export const deleteDevice = (id: string) => ask<void>("DELETE", `/api/device/${part(id)}`);
export const credentials = (id: string, signal?: AbortSignal) =>
  ask<DeviceCredentials>("GET", `/api/device/${part(id)}/credentials`, { signal });
export const saveCredentials = (body: DeviceCredentials) =>
  ask<DeviceCredentials>("POST", "/api/device/credentials", { body });

/** Sends telemetry as the device: the access token in the path is its login. */
export const sendAsDevice = (token: string, values: Json) =>
  requestAs<void>({ headers: {}, ended: () => undefined }, "POST", `/api/v1/${part(token)}/telemetry`, {
    body: values,
  });

export const profileInfos = (signal?: AbortSignal) =>
  ask<Page<ProfileInfo>>("GET", "/api/deviceProfileInfos", {
    query: { page: 0, pageSize: 1000, sortProperty: "name" },
    signal,
  });

export const keys = (entity: EntityId, signal?: AbortSignal) =>
  ask<string[]>("GET", `/api/plugins/telemetry/${of(entity)}/keys/timeseries`, { signal });
/** Keys of all scopes. */
export const attributeKeys = (entity: EntityId, signal?: AbortSignal) =>
  ask<string[]>("GET", `/api/plugins/telemetry/${of(entity)}/keys/attributes`, { signal });

/** Exports all points directly from the store, without a limit. */
export async function exportPoints(
  entity: EntityId,
  names: string[],
  from: number,
  to: number,
  format: "csv" | "parquet",
): Promise<Blob> {
  const query = new URLSearchParams({
    keys: names.join(","),
    startTs: String(Math.floor(from)),
    endTs: String(Math.ceil(to)),
    format,
  });
  const answer = await fetch(`/api/plugins/telemetry/${of(entity)}/export/timeseries?${query}`, {
    headers: { "X-Authorization": `Bearer ${await tenancy.token()}` },
  });
  if (!answer.ok) throw new RequestError(answer.status, (await answer.json().catch(() => ({}))) as { message: string });
  return answer.blob();
}

export interface Window {
  startTs: number;
  endTs: number;
  agg: Aggregation;
  interval?: number;
  limit?: number;
  orderBy?: "ASC" | "DESC";
}
export const points = (entity: EntityId, names: string[], window: Window, signal?: AbortSignal) =>
  ask<Record<string, Point[]>>("GET", `/api/plugins/telemetry/${of(entity)}/values/timeseries`, {
    query: { keys: names.join(","), orderBy: "ASC", useStrictDataTypes: true, ...window },
    signal,
  });

export const attributes = (entity: EntityId, scope: Scope, signal?: AbortSignal) =>
  ask<Attribute[]>("GET", `/api/plugins/telemetry/${of(entity)}/values/attributes/${scope}`, { signal });
export const saveAttributes = (entity: EntityId, scope: Scope, body: Json) =>
  ask<void>("POST", `/api/plugins/telemetry/${of(entity)}/attributes/${scope}`, { body });
export const saveTelemetry = (entity: EntityId, body: Json) =>
  ask<void>("POST", `/api/plugins/telemetry/${of(entity)}/timeseries/ANY`, { body });
export const deleteAttribute = (entity: EntityId, scope: Scope, key: string) =>
  ask<void>("DELETE", `/api/plugins/telemetry/${of(entity)}/${scope}`, { query: { keys: key } });

export const callDevice = (id: string, isTwoWay: boolean, body: { method: string; params: unknown; timeout: number }) =>
  ask<unknown>("POST", `/api/plugins/rpc/${isTwoWay ? "twoway" : "oneway"}/${part(id)}`, { body });

export interface PersistentCall {
  id: EntityId;
  createdTime: number;
  status: string;
  request: { body: { method: string } };
  response: unknown;
}
/** Persistent RPC calls. */
export const persistentCalls = (id: string, query: Listing, signal?: AbortSignal) =>
  ask<Page<PersistentCall>>("GET", `/api/rpc/persistent/device/${part(id)}`, { query: { ...query }, signal });

export const auditLogs = (query: Listing & { actionTypes?: string | undefined }, signal?: AbortSignal) =>
  ask<Page<AuditEntry>>("GET", "/api/audit/logs", { query: { ...query }, signal });

export type Assignable = Pick<PlatformUser, "id" | "email" | "firstName" | "lastName">;
/** Users that an alarm can be assigned to, without the users that the console creates for its logins. */
export async function assignees(alarm: string, signal?: AbortSignal): Promise<Assignable[]> {
  const found = await ask<Page<Assignable>>("GET", `/api/users/assign/${part(alarm)}`, {
    query: { page: 0, pageSize: 1000, sortProperty: "email", sortOrder: "ASC" },
    signal,
  });
  return found.data.filter((user) => !isOfConsole(user.email));
}

/** Users that visible alarms can be assigned to. A customer user sees the users of that customer. */
export async function visibleAssignees(signal?: AbortSignal): Promise<Assignable[]> {
  const found = await ask<Page<Assignable>>("GET", "/api/users/info", {
    query: { page: 0, pageSize: 1000, sortProperty: "email", sortOrder: "ASC" },
    signal,
  });
  return found.data.filter((user) => !isOfConsole(user.email));
}
export const personName = (one: { firstName?: unknown; lastName?: unknown; email: string }) =>
  [one.firstName, one.lastName].filter(Boolean).join(" ") || one.email;

export interface AlarmFilter extends Listing {
  assigneeId?: string | undefined;
  statusList?: string | undefined;
  severityList?: string | undefined;
  typeList?: string | undefined;
  /** Alarms that started at this time or later. */ startTime?: number | undefined;
}
export const alarms = (query: AlarmFilter, entity: EntityId | undefined, signal?: AbortSignal) =>
  ask<Page<Alarm>>("GET", entity ? `/api/v2/alarm/${of(entity)}` : "/api/v2/alarms", {
    query: { sortProperty: "startTs", sortOrder: "DESC", ...query },
    signal,
  });
export const acknowledge = (id: string) => ask<unknown>("POST", `/api/alarm/${part(id)}/ack`);
export const clear = (id: string) => ask<unknown>("POST", `/api/alarm/${part(id)}/clear`);
export const assign = (id: string, user: string) => ask<unknown>("POST", `/api/alarm/${part(id)}/assign/${part(user)}`);
export const unassign = (id: string) => ask<unknown>("DELETE", `/api/alarm/${part(id)}/assign`);
export const deleteAlarm = (id: string) => ask<unknown>("DELETE", `/api/alarm/${part(id)}`);
export const comments = (id: string, signal?: AbortSignal) =>
  ask<Page<AlarmComment>>("GET", `/api/alarm/${part(id)}/comment`, {
    query: { page: 0, pageSize: 100, sortProperty: "createdTime", sortOrder: "ASC" },
    signal,
  });
export const comment = (id: string, text: string) =>
  ask<unknown>("POST", `/api/alarm/${part(id)}/comment`, { body: { comment: { text } } });

export const relations = (entity: EntityId, direction: "from" | "to", signal?: AbortSignal) =>
  ask<Relation[]>("GET", "/api/relations/info", {
    query: { [`${direction}Id`]: entity.id, [`${direction}Type`]: entity.entityType },
    signal,
  });
export const saveRelation = (body: { from: EntityId; to: EntityId; type: string }) =>
  ask<unknown>("POST", "/api/relation", { body: { ...body, typeGroup: "COMMON" } });
export const deleteRelation = (one: Relation) =>
  ask<void>("DELETE", "/api/relation", {
    query: {
      fromId: one.from.id,
      fromType: one.from.entityType,
      relationType: one.type,
      relationTypeGroup: one.typeGroup,
      toId: one.to.id,
      toType: one.to.entityType,
    },
  });

export interface DashboardInfo {
  id: EntityId;
  createdTime: number;
  title: string;
}
export const dashboards = (query: Listing, signal?: AbortSignal) =>
  ask<Page<DashboardInfo>>("GET", `/api/${owner()}/dashboards`, { query: { ...query }, signal });
export const dashboard = (id: string, signal?: AbortSignal) =>
  ask<Dashboard>("GET", `/api/dashboard/${part(id)}`, { signal });
export const saveDashboard = (body: Dashboard) => ask<Dashboard & { id: EntityId }>("POST", "/api/dashboard", { body });
export const deleteDashboard = (id: string) => ask<void>("DELETE", `/api/dashboard/${part(id)}`);

export const profiles = (signal?: AbortSignal) =>
  ask<Page<Profile>>("GET", "/api/deviceProfiles", {
    query: { page: 0, pageSize: 1000, sortProperty: "name" },
    signal,
  });
export const profile = (id: string, signal?: AbortSignal) =>
  ask<Profile>("GET", `/api/deviceProfile/${part(id)}`, { signal });
export const saveProfile = (body: Json) => ask<Profile>("POST", "/api/deviceProfile", { body });
/** Queues of the tenant, or the shared ones. */
export const ruleQueues = (signal?: AbortSignal) =>
  ask<Page<{ name: string }>>("GET", "/api/queues", {
    query: { serviceType: "TB_RULE_ENGINE", page: 0, pageSize: 100, sortProperty: "name" },
    signal,
  });
export const makeDefault = (id: string) => ask<unknown>("POST", `/api/deviceProfile/${part(id)}/default`);
export const deleteProfile = (id: string) => ask<void>("DELETE", `/api/deviceProfile/${part(id)}`);

export const ruleChains = (query: Listing, signal?: AbortSignal) =>
  ask<Page<RuleChain>>("GET", "/api/ruleChains", { query: { ...query }, signal });
export const ruleChain = (id: string, signal?: AbortSignal) =>
  ask<RuleChain>("GET", `/api/ruleChain/${part(id)}`, { signal });
export const saveRuleChain = (body: Json) => ask<RuleChain>("POST", "/api/ruleChain", { body });
export const deleteRuleChain = (id: string) => ask<void>("DELETE", `/api/ruleChain/${part(id)}`);
export const makeRoot = (id: string) => ask<unknown>("POST", `/api/ruleChain/${part(id)}/root`);
export const chainMetadata = (id: string, signal?: AbortSignal) =>
  ask<Metadata>("GET", `/api/ruleChain/${part(id)}/metadata`, { signal });
export const saveChainMetadata = (body: Metadata) => ask<Metadata>("POST", "/api/ruleChain/metadata", { body });
export const importRuleChains = (body: Json) =>
  ask<{ ruleChainName: string; error: string | null }[]>("POST", "/api/ruleChains/import", { body });

export interface Usage {
  devices: number;
  assets: number;
  customers: number;
  users: number;
  dashboards: number;
  transportMessages: number;
  transportDataPoints: number;
  storageDataPoints: number;
  ruleEngineExecutions: number;
  jsExecutions: number;
  alarms: number;
  /** Monthly limits. Missing or 0: no limit. */
  maxTransportMessages?: number;
  maxTransportDataPoints?: number;
  maxJsExecutions?: number;
  maxAlarms?: number;
}
export const usage = (signal?: AbortSignal) => ask<Usage>("GET", "/api/usage", { signal });
/** The entity whose time series hold the tenant's usage. Null until something has been counted. */
export async function usageState(signal?: AbortSignal): Promise<EntityId | null> {
  const body = {
    entityFilter: { type: "apiUsageState" },
    pageLink: { page: 0, pageSize: 1 },
    entityFields: [],
    latestValues: [],
  };
  const found = await ask<Page<{ entityId: EntityId }>>("POST", "/api/entitiesQuery/find", { body, signal });
  return found.data[0]?.entityId ?? null;
}

/** The entity whose time series hold the statistics of a queue. */
export interface QueueStats {
  id: EntityId;
  queueName: string;
  serviceId: string;
  name: string;
}
export const queueStats = (signal?: AbortSignal) =>
  ask<Page<QueueStats>>("GET", "/api/queueStats", { query: { page: 0, pageSize: 100, sortProperty: "name" }, signal });
/** The last message that a rule node failed to process. */
export interface RuleEngineException {
  at: number;
  chain: string | null;
  node: string;
  message: string;
}
export async function exceptions(of: EntityId, from: number, signal?: AbortSignal): Promise<RuleEngineException[]> {
  const key = "ruleEngineException";
  const found = await points(of, [key], { startTs: from, endTs: Date.now(), agg: "NONE", limit: 1_000 }, signal);
  const read = ({ ts, value }: Point): RuleEngineException => {
    const failure = value as { ruleChainName: string | null; ruleNodeName: string; message: string };
    return { at: ts, chain: failure.ruleChainName, node: failure.ruleNodeName, message: failure.message };
  };
  return (found[key] ?? []).map(read).reverse();
}

export interface NodeEvent {
  id: EntityId;
  createdTime: number;
  body: {
    type: "IN" | "OUT";
    entityId: string;
    entityType: string;
    msgType: string;
    data: string;
    metadata: string;
    relationType?: string;
    error?: string;
  };
}
/** Messages into and out of a rule node in debug mode, newest first. */
export const nodeEvents = (id: string, signal?: AbortSignal) =>
  ask<Page<NodeEvent>>("GET", `/api/events/RULE_NODE/${part(id)}/DEBUG_RULE_NODE`, {
    query: { page: 0, pageSize: 50 },
    signal,
  });
/** Why the server does not run a node, according to its newest event. */
export async function whyDisabled(id: string, signal?: AbortSignal): Promise<string> {
  const found = await ask<Page<{ body: { success: boolean; error?: string | null } }>>(
    "GET",
    `/api/events/RULE_NODE/${part(id)}/LC_EVENT`,
    { query: { page: 0, pageSize: 1 }, signal },
  );
  const newest = found.data[0]?.body;
  return newest && !newest.success ? (newest.error ?? "") : "";
}
export const clearNodeEvents = (id: string) =>
  ask<void>("POST", `/api/events/RULE_NODE/${part(id)}/clear`, { body: {} });

/** Runs the script of a node on a message, without side effects. */
export const tryScript = (
  body: { script: string; scriptType: ScriptType; msg: string; metadata: unknown; msgType: string },
  signal?: AbortSignal,
) =>
  ask<{ output: string; error: string }>("POST", "/api/ruleChain/testScript", {
    query: { scriptLang: "JS" },
    body: { argNames: ["msg", "metadata", "msgType"], ...body },
    signal,
  });
