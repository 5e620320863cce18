// All pages: path, title in the navigation, and code, which is loaded on the first visit.
import type { Component } from "svelte";

export interface Page {
  path: string;
  title: string;
  load: () => Promise<{ default: Component<Record<string, never>> }>;
  /** The page needs the device platform and a tenant. */
  isOfPlatform?: boolean;
  /** The page is for tenant administrators. Customer users cannot see it. */
  isOfTenant?: boolean;
  /** The page of one object: `/clients/<id>`. */
  one?: () => Promise<{ default: Component<{ id: string }> }>;
}

export interface Group { title: string; pages: Page[] }

export const groups: Group[] = [
  {
    title: "Node",
    pages: [
      { path: "home", title: "Home", load: () => import("../routes/Home.svelte") },
      { path: "benchmarks", title: "Benchmarks", load: () => import("../routes/Benchmarks.svelte") },
    ],
  },
  {
    title: "MQTT",
    pages: [
      { path: "clients", title: "Clients", load: () => import("../routes/Clients.svelte"), one: () => import("../routes/Client.svelte") },
      { path: "refused", title: "Refused clients", load: () => import("../routes/Refused.svelte") },
      { path: "bans", title: "Bans", load: () => import("../routes/Bans.svelte") },
      { path: "subscriptions", title: "Subscriptions", load: () => import("../routes/Subscriptions.svelte") },
      { path: "topics", title: "Topics", load: () => import("../routes/Topics.svelte") },
      { path: "retained", title: "Retained messages", load: () => import("../routes/Retained.svelte") },
      { path: "mqtt", title: "MQTT client", load: () => import("../routes/MqttClient.svelte") },
    ],
  },
  {
    title: "Devices",
    pages: [
      { path: "devices", title: "Devices", isOfPlatform: true, load: () => import("../routes/Devices.svelte"), one: () => import("../routes/Device.svelte") },
      { path: "dashboards", title: "Dashboards", isOfPlatform: true, load: () => import("../routes/Dashboards.svelte"), one: () => import("../routes/Dashboard.svelte") },
      { path: "profiles", title: "Device profiles", isOfPlatform: true, isOfTenant: true, load: () => import("../routes/Profiles.svelte"), one: () => import("../routes/Profile.svelte") },
      { path: "chains", title: "Rule chains", isOfPlatform: true, isOfTenant: true, load: () => import("../routes/Chains.svelte"), one: () => import("../routes/Chain.svelte") },
      { path: "usage", title: "Usage", isOfPlatform: true, isOfTenant: true, load: () => import("../routes/Usage.svelte") },
      { path: "alarms", title: "Alarms", isOfPlatform: true, load: () => import("../routes/Alarms.svelte") },
      { path: "tenant-audit", title: "Tenant audit log", isOfPlatform: true, isOfTenant: true, load: () => import("../routes/TenantAudit.svelte") },
    ],
  },
  {
    title: "Integration",
    pages: [
      { path: "rules", title: "Rules", load: () => import("../routes/Rules.svelte"), one: () => import("../routes/Rule.svelte") },
      { path: "actions", title: "Actions", load: () => import("../routes/Actions.svelte"), one: () => import("../routes/Action.svelte") },
      { path: "sources", title: "Sources", load: () => import("../routes/Sources.svelte"), one: () => import("../routes/Source.svelte") },
      { path: "connectors", title: "Connectors", load: () => import("../routes/Connectors.svelte"), one: () => import("../routes/Connector.svelte") },
    ],
  },
  {
    title: "Settings",
    pages: [
      { path: "users", title: "MQTT users", load: () => import("../routes/Users.svelte") },
      { path: "access", title: "Access rules", load: () => import("../routes/Access.svelte") },
      { path: "listeners", title: "Listeners", load: () => import("../routes/Listeners.svelte") },
      { path: "certificates", title: "Certificates", load: () => import("../routes/Certificates.svelte") },
      { path: "configuration", title: "Configuration", load: () => import("../routes/Configuration.svelte") },
      { path: "backup", title: "Backup", load: () => import("../routes/Backup.svelte") },
      { path: "console-users", title: "Console users", load: () => import("../routes/ConsoleUsers.svelte") },
      { path: "keys", title: "API keys", load: () => import("../routes/Keys.svelte") },
      { path: "audit", title: "Audit log", load: () => import("../routes/Audit.svelte") },
      { path: "logs", title: "Logs", load: () => import("../routes/Logs.svelte") },
      { path: "account", title: "My account", load: () => import("../routes/Account.svelte") },
      { path: "about", title: "About", load: () => import("../routes/About.svelte") },
    ],
  },
];

const all = groups.flatMap((group) => group.pages);

export const find = (path: string): Page | undefined => all.find((page) => page.path === path);
