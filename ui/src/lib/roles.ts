// Names and descriptions of the roles of console users and API keys.
import type { Role } from "../api/generated";

export const ROLES: { role: Role; name: string; about: string }[] = [
  { role: "viewer", name: "viewer", about: "sees everything except secrets, and changes nothing" },
  {
    role: "operator",
    name: "operator",
    about: "also disconnects clients, publishes, deletes retained messages, and pauses and restarts actions",
  },
  { role: "admin", name: "administrator", about: "changes everything" },
];

export const roleName = (role: Role): string => ROLES.find((one) => one.role === role)?.name ?? role;
export const roleAbout = (role: Role): string => ROLES.find((one) => one.role === role)?.about ?? "";
