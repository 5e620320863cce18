//! LDAP directories.

use auth::TemplateUse;

use super::super::draft::{Draft, host_and_port};
use crate::import::report::Outcome;
use crate::import::settings::Setting;

/// Defaults of EMQX.
const FILTER: &str = "(objectClass=mqttUser)";
const SUPERUSER: &str = "isSuperuser";
const CLIENT_ID: &str = "clientIdOverride";

/// EMQX rejects entries whose attribute `isEnabled` is not true if it compares the hash itself.
const ENABLED: &str = "(|(isEnabled=TRUE)(!(isEnabled=*)))";

/// Attributes with topics that the client is allowed to use.
const TOPICS: [&str; 4] = [
    "publish_attribute",
    "subscribe_attribute",
    "all_attribute",
    "acl_ttl_attribute",
];

/// Returns the provider, and why rules that allow something are left out.
pub fn convert<'a>(from: &Setting<'a>) -> Result<(Draft<'a>, Option<String>), String> {
    let mut draft = Draft::new("access.ldap", from, TemplateUse::Login);
    let text = draft.required("server")?;
    let is_tls = from.get("ssl").get("enable").flag(false)?;
    let (scheme, default_port) = if is_tls { ("ldaps", 636) } else { ("ldap", 389) };
    // EMQX uses port 389 with TLS as well.
    let (host, port) = host_and_port(text, 389)?;
    let host = if host.contains(':') {
        format!("[{host}]")
    } else {
        host.to_owned()
    };
    let url = match port == default_port {
        true => format!("{scheme}://{host}"),
        false => format!("{scheme}://{host}:{port}"),
    };
    draft.put(&from.get("server"), "servers", vec![url]);
    match is_tls {
        true => draft.certificates()?,
        false => {
            from.get("ssl").get("enable").imported("access.ldap.servers");
            from.get("ssl").refuse("TLS is off");
        }
    }
    draft.required("username")?;
    draft.text("username", "user")?;
    draft.secret("password", "password")?;
    draft.pool_size()?;
    draft.timeout("query_timeout")?;
    from.get("request_timeout")
        .refuse("access.ldap.timeout limits the whole login");
    draft.template("base_dn", "base_dn")?;
    let is_hash = method(&mut draft)?;
    filter(&mut draft, is_hash)?;
    for attribute in TOPICS {
        from.get(attribute)
            .refuse("tidewire reads no topics from the directory: write rules with attributes to access.rules");
    }
    let rules = from.get("acl_rule_attribute");
    rules.refuse("tidewire reads no access rules from the directory");
    let closed_by = rules.filled().is_some();
    let closed_by = closed_by.then(|| "the access rules of the directory are missing, which could deny it".to_owned());
    Ok((draft, closed_by))
}

/// Returns whether the hash is compared.
fn method(draft: &mut Draft<'_>) -> Result<bool, String> {
    let method = draft.from.get("method");
    let is_hash = match method.get("type").text() {
        Some("hash") => true,
        Some("bind") => false,
        None if !method.exists() => return Err("its method is missing".to_owned()),
        None if !method.get("type").exists() => true,
        _ => return Err("its method is neither hash nor bind".to_owned()),
    };
    draft.put(&method.get("type"), "method", if is_hash { "hash" } else { "bind" });
    if is_hash {
        let attribute = method.get("password_attribute");
        draft.put(
            &attribute,
            "password_attribute",
            attribute.filled().unwrap_or("userPassword"),
        );
    }
    let password = method.get("bind_password");
    if password.exists() && !password.is("${password}") {
        return Err("its bind_password is not ${password}".to_owned());
    }
    password.imported("as in tidewire");
    let superuser = method.get("is_superuser_attribute");
    draft.put(
        &superuser,
        "is_superuser_attribute",
        superuser.filled().unwrap_or(SUPERUSER),
    );
    let client_id = method.get("clientid_override_attribute");
    if client_id.filled().is_some_and(|name| name != CLIENT_ID) {
        return Err("it replaces the client ID (clientid_override_attribute), which tidewire does not".to_owned());
    }
    client_id.refuse("clients of tidewire choose their client ID themselves");
    Ok(is_hash)
}

fn filter(draft: &mut Draft<'_>, is_hash: bool) -> Result<(), String> {
    let setting = draft.from.get("filter");
    let filter = draft.optional("filter")?.unwrap_or(FILTER).trim();
    let filter = if filter.is_empty() { FILTER } else { filter };
    draft.check_template("filter", filter)?;
    if !is_hash {
        draft.put(&setting, "filter", filter);
        return Ok(());
    }
    draft.set("filter", format!("(&{filter}{ENABLED})"));
    let outcome = Outcome::Changed {
        to: draft.to("filter"),
        because: format!(
            "it also contains {ENABLED}, as EMQX checks this attribute; remove this part if the directory does not know \
             isEnabled, or it finds nobody"
        ),
    };
    match setting.exists() {
        true => setting.note_all(&outcome),
        false => setting.note_missing(outcome),
    }
    Ok(())
}
