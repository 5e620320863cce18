//! Options of the authentication provider `ldap`.

use std::collections::BTreeMap;
use std::path::PathBuf;

#[cfg(feature = "ldap")]
use auth_providers::ldap::{self, LdapConfig, LdapGroupConfig};
use connectors::Secret;
#[cfg(feature = "ldap")]
use connectors::TlsConfig;
#[cfg(feature = "ldap")]
use connectors::ldap::LdapConnectorConfig;

use super::groups::provider_section;
use crate::config::key::KeySegment::Fixed;
#[cfg(feature = "ldap")]
use crate::config::key::OptionKey;
use crate::config::option::{Apply, Kind, OptionDef, Section};
use crate::config::value::{Unset, choice};

choice! {
    /// How the password of a client is checked.
    pub enum LdapMethod {
        Bind = "bind",
        /// The hash in the entry is compared.
        Hash = "hash",
    }
}

choice! {
    /// How client attributes name a group.
    pub enum LdapGroupNames {
        First = "first",
        Whole = "whole",
    }
}

/// All options of the provider.
#[derive(Clone, Debug, PartialEq)]
pub struct LdapAccessConfig {
    pub options: LdapAccess,
    pub client_attrs: BTreeMap<String, String>,
}

provider_section! {
    /// Authentication by an LDAP directory, such as OpenLDAP or Active Directory. The provider asks the directory if
    /// `access.providers` contains `ldap`.
    pub struct LdapAccess at [Fixed("access"), Fixed("ldap")] {
        /// Servers of the directory as URLs: `ldaps://host`, or `ldap://host` without TLS or with `starttls`. The
        /// default ports are 636 and 389. The first server that can be reached is used. Referrals to other servers are
        /// not followed.
        restart servers: Vec<String> = "ldap://127.0.0.1:389";
        /// Whether connections to `ldap://` servers begin TLS before the first login (StartTLS). A server that refuses
        /// is not used. Without TLS, passwords are sent unencrypted.
        restart starttls: bool = "false";
        /// Name (DN) of the user that searches for clients. It needs the right to read the attributes that are used.
        /// Active Directory also accepts `user@domain`. Empty: searches are anonymous.
        restart user: Unset<String> = "";
        /// Password of the user.
        restart password: Unset<Secret> = "";
        /// Maximum number of connections for searches, and of connections for logins of clients. `max_concurrent`
        /// cannot exceed it.
        restart pool_size: u32 = "8" ["1", "256"] in "connections";
        /// How a password is checked. `bind`: the server logs in to the directory as the client, so that rules of the
        /// directory for locked accounts and expired passwords apply. `hash`: the server reads the hash of the
        /// password and compares it; such rules do not apply.
        restart method: LdapMethod = "bind";
        /// Name (DN) of the entry below which clients are searched, for example `ou=devices,dc=example,dc=org`. May
        /// contain placeholders: `${username}`, `${clientid}`, `${peerhost}`, `${cert_common_name}` and
        /// `${cert_subject}`. Values are escaped.
        restart base_dn: String = "";
        /// Filter that finds the entry of a client, with the placeholders of `base_dn`, for example
        /// `(&(objectClass=user)(sAMAccountName=${username}))`. If several entries match, the client is rejected; if
        /// none matches, the next provider decides. Values are compared literally: `*` is no wildcard in them. Empty:
        /// `(uid=${username})`, and every entry with `user_dn`.
        restart filter: Unset<String> = "";
        /// Name (DN) of a client, with the placeholders of `base_dn`, for example
        /// `uid=${username},ou=devices,dc=example,dc=org`. With this option, the server logs in with this name and does
        /// not search: `user`, `password` and `base_dn` have no effect. Clients must be allowed to read the own entry.
        /// The next provider is not asked, because the directory does not reveal whether a name exists. Needs the
        /// method `bind`.
        restart user_dn: Unset<String> = "";
        /// Attribute with the hash of the password for the method `hash`: `{SSHA}`, `{SSHA256}`, `{SSHA384}`,
        /// `{SSHA512}` or `{SMD5}`, or without a salt `{SHA}`, `{SHA256}`, `{SHA384}`, `{SHA512}` or `{MD5}`.
        restart password_attribute: String = "userPassword";
        /// Attribute that makes a client a superuser if it is `TRUE` or an integer from 1 on, for example
        /// `isSuperuser`. Clients must not be able to change it. Empty: no client is a superuser.
        restart is_superuser_attribute: Unset<String> = "";
        /// Names (DN) of groups, for example `["cn=mqtt,ou=groups,dc=example,dc=org"]`. A client must be a member of at
        /// least one. Empty: no membership is required.
        restart required_groups: Vec<String> = "";
        /// Attribute of a client's entry with the names of its groups. OpenLDAP needs the overlay `memberof` for it.
        /// Active Directory does not list groups of groups there: use `group_filter`.
        restart group_attribute: String = "memberOf";
        /// Filter that finds the groups of a client, instead of `group_attribute`. `${dn}` is the name of the client's
        /// entry, for example `(&(objectClass=groupOfNames)(member=${dn}))`. At most 500 groups.
        restart group_filter: Unset<String> = "";
        /// Name (DN) of the entry below which `group_filter` searches.
        restart group_base_dn: Unset<String> = "";
        /// Name of a client attribute for the groups, for topics with placeholders. The condition `groups` of access
        /// rules does not need it. With `groups`, a member of `plant-a` and `plant-b` has `${client_attrs.groups}` with
        /// the value `plant-a,plant-b`, `${client_attrs.groups.plant-a}` with the value `plant-a`, and the same for
        /// `plant-b`.
        restart groups_attr: Unset<String> = "";
        /// How `groups_attr` and the condition `groups` of access rules name a group. `first`: by the first value of
        /// its name (DN); groups in different places can have the same one. `whole`: by its whole name, in lower case
        /// and without spaces around `,` and `=`. A member of `CN=plant-a,OU=groups,DC=example,DC=org` then has
        /// `${client_attrs.groups.cn=plant-a,ou=groups,dc=example,dc=org}` with the value `plant-a`, and
        /// `${client_attrs.groups}` contains whole names with `;` between them.
        restart group_names: LdapGroupNames = "first";
        /// Trusted certificate authorities for TLS, as PEM. Empty: those of the operating system.
        restart ca_file: Unset<PathBuf> = "";
        /// Client certificate for TLS, as PEM.
        restart cert_file: Unset<PathBuf> = "";
        /// Private key of the client certificate, as PEM.
        restart key_file: Unset<PathBuf> = "";
        /// Verifies the certificates of the servers. Without verification, an attacker on the network path can read
        /// passwords and admit clients.
        restart verify: bool = "true";
    } + limits
}

#[cfg(feature = "ldap")]
impl LdapAccessConfig {
    /// Returns the configuration of the provider.
    pub fn source(&self) -> LdapConfig {
        let options = &self.options;
        LdapConfig {
            connection: options.connection(),
            method: match options.method {
                LdapMethod::Bind => ldap::LdapMethod::Bind,
                LdapMethod::Hash => ldap::LdapMethod::Hash,
            },
            base_dn: options.base_dn.clone(),
            filter: options.filter.0.clone(),
            user_dn: options.user_dn.0.clone(),
            password_attribute: options.password_attribute.clone(),
            is_superuser_attribute: options.is_superuser_attribute.0.clone(),
            client_attributes: self.client_attrs.clone(),
            groups: LdapGroupConfig {
                attribute: options.group_attribute.clone(),
                filter: options.group_filter.0.clone(),
                base_dn: options.group_base_dn.0.clone(),
                required: options.required_groups.clone(),
                client_attribute: options.groups_attr.0.clone(),
                names: match options.group_names {
                    LdapGroupNames::First => ldap::LdapGroupNames::First,
                    LdapGroupNames::Whole => ldap::LdapGroupNames::Whole,
                },
            },
        }
    }

    /// Returns the first option whose filter, name or attribute the provider cannot use, and why.
    pub fn problem(&self) -> Option<(OptionKey, String)> {
        let problem = ldap::check(&self.source()).err()?;
        // The error begins with the field, such as `filter` or `client_attrs.tenant`.
        let (field, message) = problem.split_once(": ")?;
        let words: Vec<&str> = ["access", "ldap"].into_iter().chain(field.split('.')).collect();
        Some((OptionKey::of(&words), message.to_owned()))
    }
}

#[cfg(feature = "ldap")]
impl LdapAccess {
    fn connection(&self) -> LdapConnectorConfig {
        LdapConnectorConfig {
            servers: self.servers.clone(),
            starttls: self.starttls,
            user: self.user.0.clone(),
            password: self.password.0.clone(),
            connections_max: self.pool_size,
            // A part of the time limit, so that its error names the server.
            connect_timeout_ms: (self.timeout.as_millis() as u64 / 2).max(1),
            tls: TlsConfig {
                ca_file: self.ca_file.0.clone(),
                cert_file: self.cert_file.0.clone(),
                key_file: self.key_file.0.clone(),
                verify: self.verify,
            },
        }
    }
}

/// A table with free keys, so not a struct.
pub const CLIENT_ATTRS: Section = Section {
    path: &[Fixed("access"), Fixed("ldap"), Fixed("client_attrs")],
    doc: &[" Attributes of clients from the directory, for topics of access rules (`${client_attrs.NAME}`)."],
    options: &[OptionDef {
        name: "<name>",
        doc: &[
            " Attribute of the client's entry, for example `tenant = \"departmentNumber\"`. Several values are sorted and",
            " joined by commas. Without a value, the client does not have the attribute.",
        ],
        default: "",
        range: None,
        unit: None,
        apply: Apply::Restart,
        kind: Kind::of::<String>(),
    }],
};
