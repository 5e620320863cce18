//! Authenticators of EMQX that ask another system or check tokens: each becomes an authentication provider.
//!
//! tidewire has one configuration of each kind, which all listeners share. A second authenticator of a kind is left out
//! unless it is the same.

mod database;
mod http;
mod jwt;
mod ldap;
mod mongodb;

use auth::TemplateUse;

use super::draft::Draft;
use crate::import::settings::Setting;
use crate::import::setup::Setup;

/// The providers that are imported.
pub struct Providers<'a> {
    /// Major version of EMQX.
    version: u32,
    /// Why no provider is imported.
    closed_by: Option<String>,
    /// Kind of each provider, and the authenticator that it comes from.
    taken: Vec<(&'static str, Setting<'a>)>,
    /// The token is the user name in EMQX, and a claim of it in tidewire.
    pub has_token_names: bool,
    /// Why access rules that allow something are left out.
    pub rules_closed_by: Option<String>,
    /// A client without a token is rejected.
    denies_missing_token: bool,
}

impl<'a> Providers<'a> {
    pub fn new(version: u32) -> Providers<'a> {
        Providers {
            version,
            closed_by: None,
            taken: Vec::new(),
            has_token_names: false,
            rules_closed_by: None,
            denies_missing_token: false,
        }
    }

    /// Leaves out all providers: they could admit clients that EMQX rejects, or give them rights that they do not have.
    pub fn close(&mut self, because: &str) {
        self.closed_by = Some(because.to_owned());
    }

    /// Imports an authenticator and returns the kind of its provider. The error says why it is left out.
    pub fn add(&mut self, authenticator: &Setting<'a>, setup: &mut Setup) -> Result<&'static str, String> {
        let kind = kind_of(authenticator)?;
        if let Some(because) = &self.closed_by {
            return Err(because.clone());
        }
        let precondition = authenticator.get("precondition");
        if precondition.exists() && !precondition.is("") {
            return Err("the authenticator has a precondition".to_owned());
        }
        let is_by_name = self.has_token_names || kind == "http";
        if self.denies_missing_token && kind != "jwt" && is_by_name {
            return Err(
                "EMQX rejects a client without a token before (on_missing_jwt), which tidewire does not".to_owned(),
            );
        }
        match self.taken.iter().find(|(taken, _)| *taken == kind) {
            Some((_, other)) if other.json() == authenticator.json() => {
                authenticator.imported(&format!("access.{kind}"));
            }
            Some((_, other)) => {
                return Err(format!(
                    "tidewire has one provider {kind}, and {} has other settings",
                    other.path
                ));
            }
            None => {
                self.convert(kind, authenticator)?.install(setup);
                self.taken.push((kind, authenticator.clone()));
            }
        }
        for key in ["mechanism", "backend", "enable", "precondition"] {
            authenticator.get(key).imported("access.providers");
        }
        Ok(kind)
    }

    fn convert(&mut self, kind: &str, from: &Setting<'a>) -> Result<Draft<'a>, String> {
        let mut draft = match kind {
            "jwt" => {
                let jwt = jwt::convert(from, self.version >= 6)?;
                self.has_token_names |= jwt.is_user_name;
                self.denies_missing_token |= jwt.denies_missing;
                return Ok(jwt.draft);
            }
            "http" => return http::convert("access.http", from, TemplateUse::Login),
            "ldap" => {
                let (draft, closed_by) = ldap::convert(from)?;
                self.rules_closed_by = self.rules_closed_by.take().or(closed_by);
                return Ok(draft);
            }
            "postgresql" => database::postgresql("access.postgresql", from, TemplateUse::Login)?,
            "mysql" => database::mysql("access.mysql", from, TemplateUse::Login)?,
            "mongodb" => mongodb::authenticator(from)?,
            _ => database::redis("access.redis", from, TemplateUse::Login)?,
        };
        database::password_hash(&mut draft)?;
        Ok(draft)
    }
}

fn kind_of(authenticator: &Setting<'_>) -> Result<&'static str, String> {
    let [mechanism, backend] = ["mechanism", "backend"].map(|part| authenticator.get(part).text().unwrap_or_default());
    match (mechanism, backend) {
        ("jwt", _) => Ok("jwt"),
        ("password_based", "http") => Ok("http"),
        ("password_based", "postgresql") => Ok("postgresql"),
        ("password_based", "mysql") => Ok("mysql"),
        ("password_based", "mongodb") => Ok("mongodb"),
        ("password_based", "redis") => Ok("redis"),
        ("password_based", "ldap") => Ok("ldap"),
        // The user name of EMQX is that of CONNECT, which Kerberos does not check.
        ("gssapi", "kerberos") => {
            Err("it uses Kerberos, whose principals are other user names than in EMQX: set access.kerberos".to_owned())
        }
        _ => {
            let kind = [mechanism, backend].join(" ");
            Err(format!(
                "tidewire does not authenticate clients with {}",
                kind.trim_end()
            ))
        }
    }
}

/// Imports a source of access rules. The error says why it is left out.
pub fn source<'a>(kind: &str, from: &Setting<'a>) -> Result<Draft<'a>, String> {
    let key = format!("access.source.{kind}");
    match kind {
        "http" => http::convert(&key, from, TemplateUse::Action),
        "postgresql" => database::postgresql(&key, from, TemplateUse::Rules),
        "mysql" => database::mysql(&key, from, TemplateUse::Rules),
        "mongodb" => mongodb::source(&key, from),
        _ => database::redis(&key, from, TemplateUse::Rules),
    }
}

#[cfg(test)]
mod tests;
