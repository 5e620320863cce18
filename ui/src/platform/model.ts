// ThingsBoard's JSON types, as far as the console reads them. All other fields are preserved.
import type { AlarmRule } from "./alarmrules";
import type { Provisioning, Transport } from "./profile";

export interface EntityId {
  entityType: string;
  id: string;
}
export interface Page<T> {
  data: T[];
  totalPages: number;
  totalElements: number;
  hasNext: boolean;
}
/** Unknown fields are sent back unchanged. */
export type Json = Record<string, unknown>;

export interface Tenant extends Json {
  id: EntityId;
  title: string;
}
export interface PlatformUser extends Json {
  id: EntityId;
  createdTime: number;
  email: string;
  authority: string;
  tenantId: EntityId;
}

export interface Device extends Json {
  id: EntityId;
  createdTime: number;
  name: string;
  label: string | null;
  type: string;
  deviceProfileId: EntityId;
  customerId: EntityId | null;
  additionalInfo: Json | null;
}
export interface DeviceInfo extends Device {
  active: boolean;
  deviceProfileName: string;
  customerTitle: string | null;
}
export interface Customer extends Json {
  id: EntityId;
  title: string;
}
export interface DeviceCredentials extends Json {
  id: EntityId;
  deviceId: EntityId;
  credentialsType: "ACCESS_TOKEN" | "MQTT_BASIC" | "X509_CERTIFICATE";
  credentialsId: string;
  credentialsValue: string | null;
}
export interface Basic {
  clientId: string;
  userName: string;
  password: string;
}
/** Reads `MQTT_BASIC` credentials. Empty fields are not checked. */
export function basicOf({ credentialsType, credentialsValue }: DeviceCredentials): Basic {
  const nothing: Basic = { clientId: "", userName: "", password: "" };
  if (credentialsType !== "MQTT_BASIC") return nothing;
  try {
    const given = JSON.parse(credentialsValue ?? "{}") as Partial<Record<keyof Basic, string | null>>;
    return { clientId: given.clientId ?? "", userName: given.userName ?? "", password: given.password ?? "" };
  } catch {
    return nothing;
  }
}
export interface Profile extends Json {
  id: EntityId;
  name: string;
  description: string | null;
  default: boolean;
  defaultRuleChainId: EntityId | null;
  defaultQueueName: string | null;
  provisionType: Provisioning["type"];
  provisionDeviceKey: string | null;
  profileData: {
    alarms: AlarmRule[] | null;
    transportConfiguration?: Transport;
    provisionConfiguration?: { type: string; provisionDeviceSecret?: string | null } & Json;
  } & Json;
}
export interface ProfileInfo {
  id: EntityId;
  name: string;
}

export const SCOPES = ["SERVER_SCOPE", "SHARED_SCOPE", "CLIENT_SCOPE"] as const;
export type Scope = (typeof SCOPES)[number];
export interface Attribute {
  key: string;
  value: unknown;
  lastUpdateTs: number;
}

export interface Point {
  ts: number;
  value: unknown;
}
export type Aggregation = "NONE" | "AVG" | "MIN" | "MAX" | "SUM" | "COUNT";

export const SEVERITIES = ["CRITICAL", "MAJOR", "MINOR", "WARNING", "INDETERMINATE"] as const;
export type Severity = (typeof SEVERITIES)[number];
export interface Alarm extends Json {
  id: EntityId;
  type: string;
  severity: Severity;
  status: string;
  acknowledged: boolean;
  cleared: boolean;
  startTs: number;
  endTs: number;
  ackTs: number;
  clearTs: number;
  assignTs: number;
  assignee: { id: EntityId; firstName: string | null; lastName: string | null; email: string } | null;
  originator: EntityId;
  originatorName: string | null;
  details: unknown;
}
export interface AlarmComment {
  id: EntityId;
  createdTime: number;
  type: "SYSTEM" | "OTHER";
  comment: { text?: string };
  firstName: string | null;
  email: string | null;
}

export interface Relation {
  from: EntityId;
  to: EntityId;
  type: string;
  typeGroup: string;
  fromName: string | null;
  toName: string | null;
}

/** An entry of the tenant's audit log. */
export interface AuditEntry {
  id: { id: string };
  createdTime: number;
  entityId: EntityId | null;
  entityName: string;
  userName: string;
  actionType: string;
  actionData: Json;
  actionStatus: "SUCCESS" | "FAILURE";
  actionFailureDetails: string;
}
