//! HTTP services that decide about logins or about single actions.

use auth::TemplateUse;

use super::super::draft::Draft;
use crate::import::settings::Setting;

/// Headers that EMQX sends by default. The HTTP client of tidewire sets them itself.
const OF_CLIENT: [&str; 3] = ["connection", "keep-alive", "cache-control"];

/// Settings of EMQX's connections.
const CONNECTIONS: [&str; 9] = [
    "pool_size",
    "pool_type",
    "connect_timeout",
    "enable_pipelining",
    "max_inactive",
    "max_retries",
    "retry_interval",
    "hostname_resolution",
    "allowed_hosts",
];

/// `key` is the section of the options.
pub fn convert<'a>(key: &str, from: &Setting<'a>, template_use: TemplateUse) -> Result<Draft<'a>, String> {
    let mut draft = Draft::new(key, from, template_use);
    if from.get("oauth2").get("enable").flag(false)? || from.get("hostname_resolution").is("dynamic") {
        return Err("its oauth2 or hostname_resolution has no counterpart".to_owned());
    }
    let url = draft.required("url")?;
    check_server(url)?;
    draft.template("url", "url")?;
    let method = match draft.required("method")? {
        method @ ("post" | "get") => method,
        _ => return Err("its method is neither post nor get".to_owned()),
    };
    draft.put(&from.get("method"), "method", method);
    headers(&mut draft, method)?;
    draft.templates(&from.get("body"), "body")?;
    draft.timeout("request_timeout")?;
    match url.starts_with("https:") {
        true => draft.certificates()?,
        false => {
            from.get("ssl").get("enable").imported("as in tidewire");
            from.get("ssl").refuse("the URL does not begin with https");
        }
    }
    for setting in CONNECTIONS {
        from.get(setting)
            .refuse(&format!("{key}.max_concurrent limits the questions at a time"));
    }
    Ok(draft)
}

/// Scheme, host and port are the same for all clients, and contain no password.
fn check_server(url: &str) -> Result<(), String> {
    let rest = ["http://", "https://"]
        .iter()
        .find_map(|scheme| url.strip_prefix(scheme));
    let rest = rest.ok_or("its URL begins with neither http:// nor https://")?;
    let server = &rest[..rest.find(['/', '?', '#']).unwrap_or(rest.len())];
    if server.contains("${") {
        return Err("its URL has a placeholder in the host".to_owned());
    }
    match server.contains('@') {
        true => Err("its URL contains a user name: send it in a header".to_owned()),
        false => Ok(()),
    }
}

fn headers(draft: &mut Draft<'_>, method: &str) -> Result<(), String> {
    let headers = draft.from.get("headers");
    if headers.exists() && !headers.is_object() && !headers.items().is_empty() && !headers.is("") {
        return Err("its headers are not an object".to_owned());
    }
    let mut sent = Vec::new();
    for (name, value) in headers.entries() {
        match name.to_ascii_lowercase().as_str() {
            "content-type" => {
                let text = value.text().unwrap_or_default().to_ascii_lowercase();
                let format = match text.split(';').next().unwrap_or_default().trim() {
                    "application/json" => "json",
                    "application/x-www-form-urlencoded" => "form",
                    _ => return Err("its content-type is neither JSON nor a form".to_owned()),
                };
                match method {
                    "post" => draft.put(&value, "body_format", format),
                    _ => value.refuse("a request with the method get has no body"),
                }
            }
            "host" => return Err("it sends a header host".to_owned()),
            known if OF_CLIENT.contains(&known) => value.imported("as in tidewire"),
            "accept" if value.is("application/json") => value.imported("as in tidewire"),
            _ => sent.push((name, value)),
        }
    }
    draft.secret_templates(&sent, "headers")?;
    headers.imported(&draft.to("headers"));
    Ok(())
}
