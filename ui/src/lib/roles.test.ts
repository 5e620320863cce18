import { expect, it } from "vitest";
import { partsOf, roleAbout, roleName, roleOf } from "./roles";

it("roles_are_split_and_joined", () => {
  for (const role of ["viewer", "admin", "ns:acme::operator", "ns:tenants/acme::admin"]) {
    const { name, namespace } = partsOf(role);
    expect(roleOf(name, namespace)).toBe(role);
  }
  expect(partsOf("ns:tenants/acme::admin")).toEqual({ name: "admin", namespace: "tenants/acme" });
  expect(partsOf("admin")).toEqual({ name: "admin", namespace: "" });
  expect(partsOf("ns:acme::owner").name).toBe("viewer");
});

it("role_in_a_namespace_names_it", () => {
  expect(roleName("admin")).toBe("administrator");
  expect(roleName("ns:acme::admin")).toBe("administrator of acme");
  expect(roleAbout("ns:acme::viewer")).toContain("within the namespace");
  expect(roleAbout("viewer")).not.toContain("namespace");
});
