//! Options of logins to the console with OpenID Connect.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use connectors::Secret;
use web::role::{AssignedRole, Role, RoleError};

use crate::config::Config;
use crate::config::key::KeySegment::Fixed;
use crate::config::key::OptionKey;
use crate::config::option::{Apply, Kind, OptionDef, Section, section};
use crate::config::value::{OptionValue, Reject, Unset};

impl OptionValue for AssignedRole {
    fn type_name() -> String {
        "role".into()
    }

    fn expected() -> String {
        "\"viewer\", \"operator\", \"admin\", or a role within a namespace such as \"ns:acme::viewer\"".into()
    }

    fn choices() -> Vec<&'static str> {
        Role::ALL.into_iter().map(Role::name).collect()
    }

    fn has_all_choices() -> bool {
        false
    }

    fn from_text(text: &str) -> Result<AssignedRole, Reject> {
        text.parse().map_err(|_: RoleError| Reject::Mismatch)
    }

    fn to_toml(&self) -> toml::Value {
        toml::Value::String(self.to_string())
    }
}

/// All options of logins with OpenID Connect.
#[derive(Clone, Debug, PartialEq)]
pub struct OidcConfig {
    pub options: Oidc,
    /// Values of `roles_claim`, and their roles.
    pub roles: BTreeMap<String, AssignedRole>,
}

section! {
    /// Single sign-on to the console and the API with OpenID Connect, in addition to the users of the server. It is on
    /// if `issuer` is set.
    pub struct Oidc at [Fixed("api"), Fixed("oidc")] {
        /// URL of the issuer, exactly as in its discovery document, for example `https://sso.example.org/realms/plant`.
        /// The document is at `/.well-known/openid-configuration` below it. While the issuer does not answer, only
        /// users of the server log in.
        restart issuer: Unset<String> = "";
        /// Client ID of tidewire at the issuer.
        restart client_id: String = "";
        /// Secret of the client. Empty: a public client, which only PKCE protects.
        restart client_secret: Unset<Secret> = "";
        /// Address of the console as browsers open it, for example `https://mqtt.example.org`, without a path. The
        /// issuer must allow this address with `/api/v1/oidc/callback` as a redirect URL.
        restart external_url: String = "";
        /// Name of the issuer on the button of the login page: "Sign in with ...".
        restart label: String = "OpenID Connect";
        /// Requested scopes. `openid` is needed.
        restart scopes: Vec<String> = "openid,profile";
        /// Claim with the user name. It should identify the user permanently. The audit log also has the claim `sub`.
        restart user_name_claim: String = "preferred_username";
        /// Claim with roles or groups: a text or a list of texts. `realm_access.roles` is the field `roles` of the
        /// claim `realm_access`. Claims that the ID token does not have are requested from the userinfo endpoint.
        restart roles_claim: String = "roles";
        /// File with the CA certificates that the issuer is verified with, in PEM format. Default: the certificates
        /// that the operating system trusts.
        restart ca_file: Unset<PathBuf> = "";
        /// Time limit of each request to the issuer.
        restart timeout: Duration = "5s" ["100ms", "10s"];
    }
}

/// `api.oidc.roles.<value>`: a table with free keys, so not a struct.
pub const ROLES: Section = Section {
    path: &[Fixed("api"), Fixed("oidc"), Fixed("roles")],
    doc: &[
        " Roles of users of the issuer, by values of `api.oidc.roles_claim`, for example `\"tidewire-admins\" = \"admin\"`.",
        " `\"acme-staff\" = \"ns:acme::viewer\"` is a role within the namespace `acme`.",
        " Of several roles, the highest applies; roles for the whole server come first. The login of a user is refused without",
        " a role, and with roles in several namespaces only.",
    ],
    options: &[OptionDef {
        name: "<value>",
        doc: &[" Role of users with this value: `viewer`, `operator`, `admin`, or `ns:NAMESPACE::ROLE`."],
        default: "",
        range: None,
        unit: None,
        apply: Apply::Restart,
        kind: Kind::of::<AssignedRole>(),
    }],
};

impl OidcConfig {
    /// Returns the issuer if logins with OpenID Connect are on.
    pub fn issuer(&self) -> Option<&str> {
        self.options.issuer.0.as_deref()
    }

    /// Returns `external_url` without a slash at the end.
    pub fn external_url(&self) -> &str {
        self.options.external_url.trim_end_matches('/')
    }

    /// Returns the problems, each with its option.
    pub fn problems(config: &Config) -> Vec<(OptionKey, String)> {
        let oidc = &config.oidc;
        let Some(issuer) = oidc.issuer() else { return Vec::new() };
        let options = &oidc.options;
        let checks = [
            (
                "issuer",
                !is_http(issuer) || issuer.contains(['?', '#', ' ']),
                "expected a URL such as \"https://sso.example.org/realms/plant\", without query and fragment",
            ),
            (
                "client_id",
                options.client_id.is_empty(),
                "is missing: `api.oidc.issuer` needs it",
            ),
            (
                "external_url",
                !is_origin(oidc.external_url()),
                "expected the address of the console as browsers open it, such as \"https://mqtt.example.org\"",
            ),
            (
                "scopes",
                !options.scopes.iter().any(|scope| scope == "openid"),
                "does not contain `openid`, which OpenID Connect requires",
            ),
            (
                "user_name_claim",
                options.user_name_claim.is_empty(),
                "is empty, expected the name of a claim",
            ),
            (
                "roles_claim",
                options.roles_claim.is_empty(),
                "is empty, expected the name of a claim",
            ),
            (
                "roles",
                oidc.roles.is_empty(),
                "is missing: without a role for a value of `api.oidc.roles_claim`, all logins are refused",
            ),
        ];
        let wrong = checks.into_iter().filter(|(_, is_wrong, _)| *is_wrong);
        wrong
            .map(|(option, _, message)| (OptionKey::of(&["api", "oidc", option]), message.to_owned()))
            .collect()
    }
}

fn is_http(url: &str) -> bool {
    url.starts_with("https://") || url.starts_with("http://")
}

/// Whether the URL consists of scheme, host and port.
fn is_origin(url: &str) -> bool {
    let host = url.split_once("://").map_or("", |(_, host)| host);
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b".-_:[]".contains(&byte);
    is_http(url) && !host.is_empty() && host.bytes().all(is_plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn external_url_is_an_origin() {
        for origin in [
            "https://mqtt.example.org",
            "http://127.0.0.1:18083",
            "https://[::1]:8443",
        ] {
            assert!(is_origin(origin), "{origin}");
        }
        for other in [
            "",
            "mqtt.example.org",
            "https://",
            "ftp://host",
            "https://host/console",
            "https://user@host",
            "https://host?x",
            "https://host#x",
            "https://host\r\nSet-Cookie: x",
        ] {
            assert!(!is_origin(other), "{other}");
        }
    }
}
