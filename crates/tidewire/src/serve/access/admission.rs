//! Admission of authenticated clients: their client ids, attributes from their names, and the topic prefixes of
//! listeners.

use std::collections::BTreeMap;
use std::sync::Arc;

use auth::{
    AttributeExpression, AttributeFields, ClientAttributes, Identity, Placeholder, TooManyAttributes, is_plain_level,
};
use broker::{AuthOutcome, ConnectCredentials, Mountpoint};
use mqtt::ReasonCode;

use super::NodeAccess;
use super::session_login::{CertificateTexts, SessionLogin};
use crate::config::Config;
use crate::config::mountpoint::MountpointTemplate;

/// The topic prefix of each listener, in the order of the configuration, which is that of the driver.
pub struct Mountpoints(Vec<Option<MountpointTemplate>>);

impl Mountpoints {
    pub fn new(config: &Config) -> Mountpoints {
        let of_listeners = config
            .listeners
            .iter()
            .map(|listener| listener.options.mountpoint.0.clone());
        Mountpoints(of_listeners.collect())
    }

    /// Returns the prefix of a client's topics. Fails if a value is missing or could be the prefix of other clients.
    fn of(&self, listener: u16, who: &Identity<'_>) -> Result<Option<Mountpoint>, AuthOutcome> {
        let Some(template) = self.0.get(usize::from(listener)).and_then(Option::as_ref) else {
            return Ok(None);
        };
        let value = |placeholder: &Placeholder| match placeholder {
            Placeholder::ClientId => Some(who.client_id),
            Placeholder::UserName => who.user_name,
            Placeholder::ClientAttribute(name) => who.attributes.get(name),
            _ => None,
        };
        let usable = |placeholder: &Placeholder| {
            value(placeholder).filter(|value| is_plain_level(value) && !value.contains(char::is_control))
        };
        let prefix = template.render(usable).ok();
        match prefix.and_then(|prefix| Mountpoint::new(&prefix).ok()) {
            Some(mountpoint) => Ok(Some(mountpoint)),
            None => Err(AuthOutcome::Deny {
                reason: ReasonCode::NotAuthorized,
                detail: "the client has no usable value for a placeholder of the listener's mountpoint",
            }),
        }
    }
}

/// `access.client_attrs`: the name of an attribute, and the expression with its value.
pub struct NameAttributes(Vec<(Box<str>, AttributeExpression)>);

impl NameAttributes {
    pub fn new(config: &Config) -> NameAttributes {
        let all = config.client_attrs.iter();
        NameAttributes(
            all.map(|(name, source)| (name.as_str().into(), source.0.clone()))
                .collect(),
        )
    }

    /// Adds attributes to those of a login, which have priority. `None`: there are none to add.
    fn added_to(
        &self,
        of_login: &ClientAttributes,
        fields: &AttributeFields<'_>,
    ) -> Result<Option<ClientAttributes>, TooManyAttributes> {
        let values = self.0.iter().filter_map(|(name, expression)| {
            let value = expression.value(fields)?;
            Some((name.clone(), Box::<str>::from(value)))
        });
        let values: BTreeMap<Box<str>, Box<str>> = values.collect();
        match values.is_empty() {
            true => Ok(None),
            false => of_login.with_defaults(values).map(Some),
        }
    }
}

impl NodeAccess {
    /// Rejects an authenticated client that may not connect, or gives it the topic prefix of its listener.
    pub(super) fn admit(&self, credentials: &ConnectCredentials, outcome: AuthOutcome) -> AuthOutcome {
        self.admit_with(CertificateTexts::of(credentials), credentials, outcome)
    }

    /// Like `admit`, for a CONNECT whose certificate is not among the credentials any more.
    pub(super) fn admit_with(
        &self,
        certificate: Option<Arc<CertificateTexts>>,
        credentials: &ConnectCredentials,
        outcome: AuthOutcome,
    ) -> AuthOutcome {
        let AuthOutcome::Allow(mut login) = outcome else {
            return outcome;
        };
        // The provider may have found a name that is banned.
        if let Some(name) = login.user_name.as_deref()
            && let Some(banned) = self.banned_user(&credentials.client_id, Some(name), credentials.address)
        {
            return banned;
        }
        let user_name = login.user_name.as_deref().or(credentials.user_name.as_deref());
        let user_name = match SessionLogin::of(&login.grant) {
            Some(_) => user_name,
            None => self.verified_name(user_name),
        };
        let names = certificate.as_ref().map(|names| names.identity()).unwrap_or_default();
        // The names of a client that `on_failure` admits are not checked, so it could choose its tenant.
        let is_unchecked = SessionLogin::of(&login.grant).is_some_and(|login| login.is_unchecked);
        let fields = AttributeFields {
            client_id: if is_unchecked { "" } else { &credentials.client_id },
            user_name: user_name.filter(|_| !is_unchecked),
            common_name: names.common_name,
            subject: names.subject,
        };
        let attributes = SessionLogin::attributes(&login.grant);
        let added = match self.name_attributes.added_to(attributes, &fields) {
            Ok(added) => added,
            Err(TooManyAttributes) => {
                return AuthOutcome::Deny {
                    reason: ReasonCode::NotAuthorized,
                    detail: "the client has too many attributes with those of access.client_attrs",
                };
            }
        };
        let who = Identity {
            client_id: &credentials.client_id,
            user_name,
            address: credentials.address,
            is_superuser: login.is_superuser,
            attributes: added.as_ref().unwrap_or(attributes),
            certificate: names,
        };
        if self.compiled().acl.is_some_and(|acl| !acl.can_connect(&who)) {
            return AuthOutcome::Deny {
                reason: ReasonCode::ClientIdentifierNotValid,
                detail: "the access rules do not allow this client id for this user",
            };
        }
        match self.mountpoints.of(credentials.listener, &who) {
            Ok(mountpoint) => {
                login.mountpoint = mountpoint;
                let grant = SessionLogin::with_certificate(std::mem::take(&mut login.grant), certificate);
                login.grant = SessionLogin::with_attributes(grant, added);
                AuthOutcome::Allow(login)
            }
            Err(rejection) => rejection,
        }
    }
}
