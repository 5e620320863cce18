// Names and descriptions of the roles of console users and API keys.
import type { Role, Scope } from "../api/generated";

export const ROLES: { role: Role; name: string; about: string }[] = [
  { role: "viewer", name: "viewer", about: "sees everything except secrets, and changes nothing" },
  {
    role: "operator",
    name: "operator",
    about: "also disconnects clients, publishes, deletes retained messages, and pauses and restarts actions",
  },
  { role: "admin", name: "administrator", about: "changes everything" },
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

export const roleName = (role: Role): string => ROLES.find((one) => one.role === role)?.name ?? role;
export const roleAbout = (role: Role): string => ROLES.find((one) => one.role === role)?.about ?? "";
