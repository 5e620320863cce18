//! Templates with the placeholders of EMQX's authenticators, such as `${username}`.
//!
//! [`Template::render`] replaces placeholders by values without escaping them. Callers that put values into a URL, a
//! JSON document or a query use [`Template::parts`] and escape each value, because the client chooses it.

use std::borrow::Cow;
use std::fmt;

use crate::chain::Credentials;
use crate::login::ClientAttributes;

/// Placeholders without `client_attrs`, whose names are free.
const PLACEHOLDERS: [(&str, Placeholder); 6] = [
    ("username", Placeholder::UserName),
    ("password", Placeholder::Password),
    ("clientid", Placeholder::ClientId),
    ("peerhost", Placeholder::PeerHost),
    ("cert_common_name", Placeholder::CertificateCommonName),
    ("cert_subject", Placeholder::CertificateSubject),
];

/// Placeholders of questions about an action of a client.
const ACTION_PLACEHOLDERS: [(&str, Placeholder); 4] = [
    ("action", Placeholder::Action),
    ("topic", Placeholder::Topic),
    ("qos", Placeholder::Qos),
    ("retain", Placeholder::Retain),
];

/// The question that a template is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TemplateUse {
    /// Whether a client may connect.
    Login,
    /// The access rules of a client. Its password is not available.
    Rules,
    /// Whether a client may publish or subscribe.
    Action,
}

const ATTRIBUTES_PREFIX: &str = "client_attrs.";

/// A text with placeholders.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Template {
    parts: Vec<TemplatePart>,
}

/// A part of a template.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TemplatePart {
    Text(Box<str>),
    Placeholder(Placeholder),
}

/// A property of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Placeholder {
    UserName,
    Password,
    ClientId,
    /// The client's address.
    PeerHost,
    CertificateCommonName,
    /// Subject of the client certificate, as in `CN=meter-17,O=Example`.
    CertificateSubject,
    /// `publish` or `subscribe`. This and the following ones have values only in questions about access.
    Action,
    /// The topic name, or the topic filter.
    Topic,
    Qos,
    /// `true` or `false`.
    Retain,
    /// An attribute that a provider has returned. It has no value before the login.
    ClientAttribute(Box<str>),
}

impl Template {
    /// Parses a template of a login. `${$}` stands for a dollar sign.
    pub fn parse(text: &str) -> Result<Template, TemplateError> {
        Template::parse_for(TemplateUse::Login, text)
    }

    /// Parses a template. Only the placeholders of its use are allowed.
    pub fn parse_for(template_use: TemplateUse, text: &str) -> Result<Template, TemplateError> {
        let mut parts = Vec::new();
        let mut literal = String::new();
        let mut rest = text;
        while let Some(at) = rest.find("${") {
            literal.push_str(&rest[..at]);
            let name = &rest[at + 2..];
            let (name, after) = name.split_once('}').ok_or(TemplateError::Unclosed)?;
            rest = after;
            if name == "$" {
                literal.push('$');
                continue;
            }
            let placeholder = Placeholder::parse(template_use, name).ok_or_else(|| match template_use {
                TemplateUse::Login => TemplateError::Unknown(name.into()),
                _ => TemplateError::NotAllowed(name.into(), template_use),
            })?;
            if !literal.is_empty() {
                parts.push(TemplatePart::Text(std::mem::take(&mut literal).into()));
            }
            parts.push(TemplatePart::Placeholder(placeholder));
        }
        literal.push_str(rest);
        if !literal.is_empty() {
            parts.push(TemplatePart::Text(literal.into()));
        }
        Ok(Template { parts })
    }

    /// Texts and placeholders in order, for callers that escape the values.
    pub fn parts(&self) -> &[TemplatePart] {
        &self.parts
    }

    pub fn placeholders(&self) -> impl Iterator<Item = &Placeholder> {
        self.parts.iter().filter_map(|part| match part {
            TemplatePart::Placeholder(placeholder) => Some(placeholder),
            TemplatePart::Text(_) => None,
        })
    }

    /// Replaces the placeholders before the login, when the client has no attributes.
    pub fn render(&self, credentials: &Credentials) -> Result<String, Missing> {
        self.render_with(credentials, &ClientAttributes::default())
    }

    /// Replaces the placeholders. An error if the client has no such value, or a password that is not text.
    pub fn render_with(&self, credentials: &Credentials, attributes: &ClientAttributes) -> Result<String, Missing> {
        let mut rendered = String::new();
        for part in &self.parts {
            match part {
                TemplatePart::Text(text) => rendered.push_str(text),
                TemplatePart::Placeholder(placeholder) => {
                    let missing = || Missing(placeholder.clone());
                    let value = placeholder.value(credentials, attributes).ok_or_else(missing)?;
                    rendered.push_str(std::str::from_utf8(&value).map_err(|_| missing())?);
                }
            }
        }
        Ok(rendered)
    }
}

impl Placeholder {
    fn parse(template_use: TemplateUse, name: &str) -> Option<Placeholder> {
        if let Some(attribute) = name.strip_prefix(ATTRIBUTES_PREFIX) {
            let is_known = !attribute.is_empty() && template_use == TemplateUse::Login;
            return is_known.then(|| Placeholder::ClientAttribute(attribute.into()));
        }
        let mut allowed = allowed(template_use);
        let known = allowed.find(|(known, _)| *known == name);
        known.map(|(_, placeholder)| placeholder.clone())
    }

    /// Returns the value. `None` if the client has none. Only a password can have bytes that are not UTF-8.
    pub fn value<'a>(&self, credentials: &'a Credentials, attributes: &'a ClientAttributes) -> Option<Cow<'a, [u8]>> {
        let borrowed = |text: &'a str| Cow::Borrowed(text.as_bytes());
        match self {
            Placeholder::UserName => credentials.user_name.as_deref().map(borrowed),
            Placeholder::Password => {
                let password = credentials.password.as_ref()?;
                Some(Cow::Borrowed(password.expose()))
            }
            Placeholder::ClientId => Some(borrowed(&credentials.client_id)),
            Placeholder::PeerHost => {
                let address = credentials.address.to_canonical().to_string();
                Some(Cow::Owned(address.into_bytes()))
            }
            Placeholder::CertificateCommonName => credentials.certificate_common_name.as_deref().map(borrowed),
            Placeholder::CertificateSubject => credentials.certificate_subject.as_deref().map(borrowed),
            Placeholder::Action => credentials.action.as_ref().map(|action| borrowed(action.name())),
            Placeholder::Topic => credentials.action.as_ref().map(|action| borrowed(action.topic())),
            Placeholder::Qos => {
                let qos = credentials.action.as_ref()?.qos() as u8;
                Some(Cow::Owned(qos.to_string().into_bytes()))
            }
            Placeholder::Retain => {
                let retain = credentials.action.as_ref()?.retain();
                Some(borrowed(if retain { "true" } else { "false" }))
            }
            Placeholder::ClientAttribute(name) => attributes.get(name).map(borrowed),
        }
    }
}

/// Returns the placeholders of a use and their names.
fn allowed(template_use: TemplateUse) -> impl Iterator<Item = &'static (&'static str, Placeholder)> {
    let is_login = template_use == TemplateUse::Login;
    let of_action: &[_] = match template_use {
        TemplateUse::Action => &ACTION_PLACEHOLDERS,
        TemplateUse::Login | TemplateUse::Rules => &[],
    };
    let of_client = PLACEHOLDERS.iter();
    let of_client = of_client.filter(move |(_, placeholder)| is_login || *placeholder != Placeholder::Password);
    of_client.chain(of_action)
}

impl fmt::Display for Placeholder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Placeholder::ClientAttribute(name) => write!(f, "${{{ATTRIBUTES_PREFIX}{name}}}"),
            other => {
                let mut all = PLACEHOLDERS.iter().chain(&ACTION_PLACEHOLDERS);
                let known = all.find(|(_, known)| known == other);
                write!(f, "${{{}}}", known.map_or("", |(name, _)| name))
            }
        }
    }
}

/// Why a text is not a template.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TemplateError {
    Unclosed,
    Unknown(Box<str>),
    /// A placeholder that this use does not have.
    NotAllowed(Box<str>, TemplateUse),
}

impl fmt::Display for TemplateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TemplateError::Unclosed => f.write_str("found ${ without a closing }; write ${$} for a dollar sign"),
            TemplateError::Unknown(name) => {
                write!(f, "unknown placeholder ${{{name}}}, expected one of")?;
                for (known, _) in &PLACEHOLDERS {
                    write!(f, " ${{{known}}}")?;
                }
                write!(f, " ${{{ATTRIBUTES_PREFIX}NAME}}")
            }
            TemplateError::NotAllowed(name, template_use) => {
                write!(f, "unknown placeholder ${{{name}}}, expected one of")?;
                allowed(*template_use).try_for_each(|(known, _)| write!(f, " ${{{known}}}"))
            }
        }
    }
}

impl std::error::Error for TemplateError {}

/// The client has no value for this placeholder that is text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Missing(pub Placeholder);

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the client has no value for {} that is text", self.0)
    }
}

impl std::error::Error for Missing {}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::chain::RequestedAction;
    use crate::secret::Password;

    fn credentials(user_name: Option<&str>, password: Option<&[u8]>) -> Credentials {
        Credentials {
            client_id: "c1".to_owned(),
            user_name: user_name.map(str::to_owned),
            password: password.map(Password::new),
            address: "::ffff:192.0.2.7".parse().unwrap(),
            certificate_common_name: Some("meter".into()),
            certificate_subject: Some("CN=meter".into()),
            action: None,
        }
    }

    #[test]
    fn placeholders_are_replaced() {
        let client = credentials(Some("u}${clientid}"), Some(b"p"));
        for (template, expected) in [
            ("", ""),
            ("a$b{c}", "a$b{c}"),
            ("${clientid}", "c1"),
            ("x${username}y${password}", "xu}${clientid}yp"),
            ("${peerhost}/${cert_common_name}", "192.0.2.7/meter"),
            ("${cert_subject}", "CN=meter"),
            ("${$}{clientid}${$}", "${clientid}$"),
        ] {
            let rendered = Template::parse(template).unwrap().render(&client);
            assert_eq!(rendered.as_deref(), Ok(expected), "{template}");
        }
    }

    #[test]
    fn missing_values_are_reported() {
        let without_certificate = Credentials {
            certificate_subject: None,
            ..credentials(None, None)
        };
        for (template, client) in [
            ("${username}", credentials(None, None)),
            ("${password}", credentials(Some("u"), None)),
            ("${password}", credentials(Some("u"), Some(&[0xFF]))),
            ("${cert_subject}", without_certificate),
            ("${client_attrs.tenant}", credentials(None, None)),
        ] {
            let missing = Template::parse(template).unwrap().render(&client).unwrap_err();
            assert_eq!(missing.0.to_string(), template);
        }
        let attributes = ClientAttributes::new(BTreeMap::from([("tenant".into(), "t1".into())])).unwrap();
        let template = Template::parse("${client_attrs.tenant}").unwrap();
        assert_eq!(
            template.render_with(&credentials(None, None), &attributes).as_deref(),
            Ok("t1")
        );
    }

    #[test]
    fn uses_have_different_placeholders() {
        use TemplateUse::{Action, Login, Rules};
        for (name, uses) in [
            ("username", &[Login, Rules, Action][..]),
            ("password", &[Login]),
            ("client_attrs.a", &[Login]),
            ("topic", &[Action]),
            ("action", &[Action]),
            ("qos", &[Action]),
            ("retain", &[Action]),
        ] {
            for template_use in [Login, Rules, Action] {
                let parsed = Template::parse_for(template_use, &format!("${{{name}}}"));
                assert_eq!(parsed.is_ok(), uses.contains(&template_use), "{name} {template_use:?}");
            }
        }
        let text = TemplateError::NotAllowed("password".into(), Action).to_string();
        assert!(text.contains("${topic}") && !text.ends_with("${password}"), "{text}");
    }

    #[test]
    fn actions_are_values_of_placeholders() {
        let asked = |action| {
            let client = Credentials {
                action: Some(action),
                ..credentials(Some("u"), None)
            };
            let template = Template::parse_for(TemplateUse::Action, "${action} ${topic} ${qos} ${retain}");
            template.unwrap().render(&client).unwrap()
        };
        let (qos, retain) = (mqtt::QoS::AtLeastOnce, true);
        let topic = "a/${clientid}".into();
        assert_eq!(
            asked(RequestedAction::Publish { topic, qos, retain }),
            "publish a/${clientid} 1 true"
        );
        let filter = "a/#".into();
        assert_eq!(
            asked(RequestedAction::Subscribe { filter, qos }),
            "subscribe a/# 1 false"
        );
    }

    #[test]
    fn unknown_placeholders_are_rejected() {
        for name in [
            "",
            "user",
            "username ",
            "client_attrs",
            "client_attrs.",
            "Password",
            "$$",
        ] {
            let error = Template::parse(&format!("a${{{name}}}")).unwrap_err();
            assert_eq!(error, TemplateError::Unknown(name.into()));
        }
        assert_eq!(Template::parse("a${username"), Err(TemplateError::Unclosed));
        let text = TemplateError::Unknown("user".into()).to_string();
        for (known, _) in PLACEHOLDERS {
            assert!(text.contains(&format!("${{{known}}}")), "{text}");
        }
        assert!(text.contains("${client_attrs.NAME}"), "{text}");
    }
}
