// Names and descriptions of the roles of console users and API keys.
import type { Role, Scope } from "../api/generated";

type RoleName = "viewer" | "operator" | "admin";

export const ROLES: { role: RoleName; name: string; about: string; aboutNamespace: string }[] = [
  {
    role: "viewer",
    name: "viewer",
    about: "sees everything except secrets, and changes nothing",
    aboutNamespace: "sees clients, subscriptions and retained messages",
  },
  {
    role: "operator",
    name: "operator",
    about: "also disconnects clients, publishes, deletes retained messages, and pauses and restarts actions",
    aboutNamespace: "also disconnects clients, publishes, and deletes retained messages",
  },
  {
    role: "admin",
    name: "administrator",
    about: "changes everything",
    aboutNamespace: "also changes subscriptions of clients",
  },
];

// In the words of the API, so that a program and its key use the same names.
export const SCOPES: { scope: Scope; about: string }[] = [
  { scope: "connections", about: "clients, subscriptions, queues, traces, retained messages" },
  { scope: "publish", about: "publishing of messages" },
  { scope: "data_integration", about: "rules, actions, connectors and sources" },
  { scope: "access_control", about: "MQTT users, access rules, bans and providers" },
  { scope: "monitoring", about: "metrics, statistics, alarms and the log" },
  { scope: "system", about: "configuration, certificates, backups, benchmarks and restart" },
  { scope: "audit", about: "the audit log" },
];

/** Splits a role such as `ns:acme::viewer`. The namespace is empty for a role for the whole server. */
export function partsOf(role: Role): { name: RoleName; namespace: string } {
  const parts = /^ns:(.*)::([a-z]*)$/.exec(role);
  const name = ROLES.find((one) => one.role === (parts?.[2] ?? role))?.role ?? "viewer";
  return { name, namespace: parts?.[1] ?? "" };
}

export const roleOf = (name: RoleName, namespace: string): Role => (namespace ? `ns:${namespace}::${name}` : name);

const known = (name: RoleName) => ROLES.find((one) => one.role === name);

export function roleName(role: Role): string {
  const { name, namespace } = partsOf(role);
  return (known(name)?.name ?? name) + (namespace && ` of ${namespace}`);
}

export function roleAbout(role: Role): string {
  const { name, namespace } = partsOf(role);
  if (!namespace) return known(name)?.about ?? "";
  return `${known(name)?.aboutNamespace ?? ""}, within the namespace`;
}
