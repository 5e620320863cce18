//! The request to an HTTP service: templates, and their values for a client.

use std::borrow::Cow;
use std::time::Duration;

use auth::{ClientAttributes, Credentials, Placeholder, Template, TemplatePart, TemplateUse};
use connectors::http::{HttpQuestion, UrlPart};
use serde_json::{Map, Value};

use super::{HttpBodyFormat, HttpSourceConfig, HttpSourceMethod};
use crate::source::QuestionKey;

/// Maximum length of an answer.
const ANSWER_BYTES_MAX: usize = 64 << 10;

pub(super) struct RequestTemplate {
    method: HttpSourceMethod,
    /// Path and query.
    path: Template,
    headers: Vec<(String, Template)>,
    body: Vec<(String, Template)>,
    body_format: HttpBodyFormat,
    /// Each placeholder once.
    placeholders: Vec<Placeholder>,
    /// Placeholders that need a value.
    in_segments: Vec<Placeholder>,
}

impl RequestTemplate {
    /// `path` is the part of the URL behind the host. The error names the field.
    pub fn new(template_use: TemplateUse, config: &HttpSourceConfig, path: &str) -> Result<RequestTemplate, String> {
        if path.contains('#') {
            return Err("url: found #, which begins a fragment; write %23 for the character".to_owned());
        }
        let fixed = ["content-type", "host"];
        if let Some(name) = config
            .headers
            .keys()
            .find(|name| fixed.iter().any(|f| name.eq_ignore_ascii_case(f)))
        {
            return Err(format!(
                "headers.{name}: is set by the server; body_format sets the content type"
            ));
        }
        let headers = config.headers.iter().map(|(name, value)| (name, value.expose()));
        let body = config.body.iter().map(|(name, value)| (name, value.as_str()));
        let template = RequestTemplate {
            method: config.method,
            path: parse(template_use, "url", path)?,
            headers: named_templates(template_use, "headers", headers)?,
            body: named_templates(template_use, "body", body)?,
            body_format: config.body_format,
            placeholders: Vec::new(),
            in_segments: Vec::new(),
        };
        Ok(RequestTemplate {
            placeholders: template.all_placeholders(),
            in_segments: placeholders_in_segments(&template.path),
            ..template
        })
    }

    fn all_placeholders(&self) -> Vec<Placeholder> {
        let fields = self.headers.iter().chain(&self.body).map(|(_, template)| template);
        let mut placeholders = Vec::new();
        for placeholder in std::iter::once(&self.path)
            .chain(fields)
            .flat_map(Template::placeholders)
        {
            if !placeholders.contains(placeholder) {
                placeholders.push(placeholder.clone());
            }
        }
        placeholders
    }

    /// Requests with equal values are equal. `None` if a request cannot contain the credentials.
    pub fn question(&self, credentials: &Credentials) -> Option<QuestionKey> {
        let mut parts: Vec<Cow<'_, [u8]>> = Vec::with_capacity(self.placeholders.len() * 2);
        for placeholder in &self.placeholders {
            let value = placeholder.value(credentials, no_attributes());
            if value.is_none() && self.in_segments.contains(placeholder) {
                return None;
            }
            let is_text = value.as_deref().is_none_or(|value| std::str::from_utf8(value).is_ok());
            if !is_text {
                return None;
            }
            parts.push(Cow::Borrowed(if value.is_some() { b"+" } else { b"-" }));
            parts.push(value.unwrap_or_default());
        }
        let parts: Vec<&[u8]> = parts.iter().map(|part| &**part).collect();
        Some(QuestionKey::of(&parts))
    }

    /// Returns the request of a client. `None` if a value is missing in a path segment or is not text.
    pub fn fill(&self, credentials: &Credentials, timeout: Duration) -> Option<HttpQuestion> {
        let body: Option<Vec<(&str, String)>> = self
            .body
            .iter()
            .map(|(name, template)| Some((name.as_str(), text(template, credentials)?)))
            .collect();
        let body = body?;
        let mut headers = vec![("accept".to_owned(), "application/json".to_owned())];
        for (name, template) in &self.headers {
            headers.retain(|(other, _)| !other.eq_ignore_ascii_case(name));
            headers.push((name.clone(), text(template, credentials)?));
        }
        let mut path = self.path(credentials)?;
        let body = match (self.method, self.body_format) {
            (HttpSourceMethod::Get, _) => {
                path.extend(query(&self.path, body));
                Vec::new()
            }
            (HttpSourceMethod::Post, HttpBodyFormat::Json) => {
                headers.push(("content-type".to_owned(), "application/json".to_owned()));
                let fields = body
                    .into_iter()
                    .map(|(name, value)| (name.to_owned(), Value::String(value)));
                Value::Object(fields.collect::<Map<_, _>>()).to_string().into_bytes()
            }
            (HttpSourceMethod::Post, HttpBodyFormat::Form) => {
                let content_type = "application/x-www-form-urlencoded";
                headers.push(("content-type".to_owned(), content_type.to_owned()));
                let fields = body
                    .iter()
                    .map(|(name, value)| format!("{}={}", encoded(name), encoded(value)));
                fields.collect::<Vec<_>>().join("&").into_bytes()
            }
        };
        Some(HttpQuestion {
            method: match self.method {
                HttpSourceMethod::Get => "GET".to_owned(),
                HttpSourceMethod::Post => "POST".to_owned(),
            },
            path,
            headers,
            body,
            timeout,
            answer_bytes_max: ANSWER_BYTES_MAX,
        })
    }

    fn path(&self, credentials: &Credentials) -> Option<Vec<UrlPart<String, String>>> {
        let part = |part: &TemplatePart| match part {
            TemplatePart::Text(text) => Some(UrlPart::Literal(text.to_string())),
            TemplatePart::Placeholder(placeholder) => {
                let value = placeholder.value(credentials, no_attributes());
                let value = value.map(|value| String::from_utf8(value.into_owned()));
                Some(UrlPart::Value(value.transpose().ok()?))
            }
        };
        self.path.parts().iter().map(part).collect()
    }
}

/// Returns whether the values of the client can be sent in headers: a line break would begin another header.
pub(super) fn are_headers_valid(headers: &[(String, String)]) -> bool {
    let is_printable = |value: &str| value.bytes().all(|byte| byte == b' ' || byte.is_ascii_graphic());
    headers.iter().all(|(_, value)| is_printable(value))
}

fn named_templates<'a>(
    template_use: TemplateUse,
    field: &str,
    texts: impl Iterator<Item = (&'a String, &'a str)>,
) -> Result<Vec<(String, Template)>, String> {
    texts
        .map(|(name, text)| Ok((name.clone(), parse(template_use, &format!("{field}.{name}"), text)?)))
        .collect()
}

fn parse(template_use: TemplateUse, field: &str, text: &str) -> Result<Template, String> {
    let template = Template::parse_for(template_use, text).map_err(|error| format!("{field}: {error}"))?;
    let is_attribute = |placeholder: &&Placeholder| matches!(placeholder, Placeholder::ClientAttribute(_));
    if let Some(attribute) = template.placeholders().find(is_attribute) {
        return Err(format!("{field}: {attribute} has no value before the login"));
    }
    Ok(template)
}

/// Placeholders before the query.
fn placeholders_in_segments(path: &Template) -> Vec<Placeholder> {
    let mut placeholders = Vec::new();
    for part in path.parts() {
        match part {
            TemplatePart::Text(text) if text.contains('?') => break,
            TemplatePart::Text(_) => {}
            TemplatePart::Placeholder(placeholder) => placeholders.push(placeholder.clone()),
        }
    }
    placeholders
}

/// Returns the fields as parts of a query behind the path.
fn query(path: &Template, fields: Vec<(&str, String)>) -> Vec<UrlPart<String, String>> {
    let has_query = path
        .parts()
        .iter()
        .any(|part| matches!(part, TemplatePart::Text(text) if text.contains('?')));
    let mut parts = Vec::new();
    let mut separator = if has_query { "&" } else { "?" };
    for (name, value) in fields {
        parts.push(UrlPart::Literal(separator.to_owned()));
        parts.push(UrlPart::Value(Some(name.to_owned())));
        parts.push(UrlPart::Literal("=".to_owned()));
        parts.push(UrlPart::Value(Some(value)));
        separator = "&";
    }
    parts
}

/// Replaces placeholders. A missing value is empty, as in EMQX. `None` for a value that is not text.
fn text(template: &Template, credentials: &Credentials) -> Option<String> {
    let mut rendered = String::new();
    for part in template.parts() {
        match part {
            TemplatePart::Text(text) => rendered.push_str(text),
            TemplatePart::Placeholder(placeholder) => {
                let value = placeholder.value(credentials, no_attributes()).unwrap_or_default();
                rendered.push_str(std::str::from_utf8(&value).ok()?);
            }
        }
    }
    Some(rendered)
}

/// A client has no attributes before its login.
fn no_attributes() -> &'static ClientAttributes {
    static NONE: std::sync::LazyLock<ClientAttributes> = std::sync::LazyLock::new(ClientAttributes::default);
    &NONE
}

/// Percent-encodes all bytes except the unreserved characters [RFC 3986, 2.3].
pub(crate) fn encoded(text: &str) -> String {
    let mut encoded = String::new();
    for byte in text.bytes() {
        match byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            true => encoded.push(byte.into()),
            false => encoded.push_str(&format!("%{byte:02X}")),
        }
    }
    encoded
}
