//! Device credentials: how they are stored, and in which order a connection is matched, as in ThingsBoard.
//!
//! A connection with a user name is matched first by client identifier and user name together, then by the user name
//! alone. The user name is an access token or the user name of basic credentials. For an access token the password is
//! ignored. A connection without a user name is matched by its client identifier.

use std::fmt;

use sha3::{Digest, Sha3_256};

use crate::ids::DeviceId;
use crate::model::{CredentialsType, DeviceCredentials, MqttBasic};

const PEM_MARKERS: [&str; 2] = ["-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"];

/// User name or client identifier of a connection that may only provision a device.
pub const PROVISION_NAME: &str = "provision";

/// Hexadecimal SHA3-256 of a text without line breaks and PEM markers. ThingsBoard hashes certificates and names like
/// this.
pub fn sha3_hash(text: &str) -> String {
    let digest = Sha3_256::digest(trim_certificate(text).as_bytes());
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The id of certificate credentials: the hash of the base64 DER.
pub fn certificate_hash(der: &[u8]) -> String {
    use base64ct::{Base64, Encoding};
    sha3_hash(&Base64::encode_string(der))
}

fn trim_certificate(text: &str) -> String {
    let mut text = text.replace(['\n', '\r'], "");
    for mark in PEM_MARKERS {
        text = text.replace(mark, "");
    }
    text
}

/// Why credentials cannot be saved. The texts are ThingsBoard's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CredentialsError {
    MissingId,
    InvalidBasicBody,
    EmptyBasic,
    PasswordWithoutUserName,
    MissingCertificate,
    ControlCharacters,
    /// This platform has no LwM2M transport.
    Lwm2m,
}

impl fmt::Display for CredentialsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            CredentialsError::MissingId => "Device credentials id should be specified!",
            CredentialsError::InvalidBasicBody => "Invalid credentials body for simple mqtt credentials!",
            CredentialsError::EmptyBasic => "Both mqtt client id and user name are empty!",
            CredentialsError::PasswordWithoutUserName => "Password cannot be specified along with client id",
            CredentialsError::MissingCertificate => "X509 certificate must be specified!",
            CredentialsError::ControlCharacters => "Credentials Id must not contain control characters!",
            CredentialsError::Lwm2m => "LwM2M credentials are not supported: this server has no LwM2M transport",
        })
    }
}

impl std::error::Error for CredentialsError {}

/// Converts credentials to their stored form, including the id by which they are found.
pub fn normalize(credentials: &mut DeviceCredentials) -> Result<(), CredentialsError> {
    match credentials.credentials_type {
        CredentialsType::AccessToken => {}
        CredentialsType::X509Certificate => normalize_certificate(credentials)?,
        CredentialsType::MqttBasic => normalize_basic(credentials)?,
        CredentialsType::Lwm2mCredentials => return Err(CredentialsError::Lwm2m),
    }
    match credentials.credentials_id.as_deref() {
        None | Some("") => Err(CredentialsError::MissingId),
        Some(id) if id.chars().any(char::is_control) => Err(CredentialsError::ControlCharacters),
        Some(_) => Ok(()),
    }
}

fn normalize_certificate(credentials: &mut DeviceCredentials) -> Result<(), CredentialsError> {
    let certificate = credentials.credentials_value.as_deref().map(trim_certificate);
    let certificate = certificate
        .filter(|text| !text.is_empty())
        .ok_or(CredentialsError::MissingCertificate)?;
    credentials.credentials_id = Some(sha3_hash(&certificate));
    credentials.credentials_value = Some(certificate);
    Ok(())
}

fn normalize_basic(credentials: &mut DeviceCredentials) -> Result<(), CredentialsError> {
    let body = credentials
        .credentials_value
        .as_deref()
        .ok_or(CredentialsError::InvalidBasicBody)?;
    let basic: MqttBasic = serde_json::from_str(body).map_err(|_| CredentialsError::InvalidBasicBody)?;
    let client_id = non_empty(basic.client_id.as_deref());
    let user_name = non_empty(basic.user_name.as_deref());
    let id = match (client_id, user_name) {
        (None, None) => return Err(CredentialsError::EmptyBasic),
        (Some(_), None) if non_empty(basic.password.as_deref()).is_some() => {
            return Err(CredentialsError::PasswordWithoutUserName);
        }
        (None, Some(user_name)) => user_name.to_owned(),
        (Some(client_id), None) => sha3_hash(client_id),
        (Some(client_id), Some(user_name)) => sha3_hash(&format!("{client_id}|{user_name}")),
    };
    credentials.credentials_id = Some(id);
    credentials.credentials_value =
        Some(serde_json::to_string(&basic).map_err(|_| CredentialsError::InvalidBasicBody)?);
    Ok(())
}

fn non_empty(text: Option<&str>) -> Option<&str> {
    text.filter(|text| !text.is_empty())
}

/// Credentials as held in memory, to authenticate connections.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Credential {
    pub device: DeviceId,
    pub secret: CredentialSecret,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CredentialSecret {
    /// An access token: the id is the secret.
    None,
    Certificate,
    Basic(Box<BasicCredentials>),
}

/// Values that a client must present. A matching credentials id does not prove that it presented them, because
/// different values can have the same id. For example, client identifier `C|U` has the same hash as client identifier
/// `C` with user name `U`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BasicCredentials {
    client_id: Option<Box<str>>,
    user_name: Option<Box<str>>,
    /// `None` accepts any password, and also a missing one.
    password: Option<Box<str>>,
}

impl BasicCredentials {
    fn matches(&self, client_id: Option<&str>, user_name: Option<&str>) -> bool {
        self.client_id.as_deref() == client_id && self.user_name.as_deref() == user_name
    }
}

impl CredentialSecret {
    pub fn of(credentials: &DeviceCredentials) -> CredentialSecret {
        match credentials.credentials_type {
            CredentialsType::X509Certificate => CredentialSecret::Certificate,
            CredentialsType::MqttBasic => {
                let body = credentials.credentials_value.as_deref().unwrap_or_default();
                let basic: MqttBasic = serde_json::from_str(body).unwrap_or_default();
                let some = |text: Option<String>| text.filter(|text| !text.is_empty()).map(String::into_boxed_str);
                CredentialSecret::Basic(Box::new(BasicCredentials {
                    client_id: some(basic.client_id),
                    user_name: some(basic.user_name),
                    password: some(basic.password),
                }))
            }
            CredentialsType::AccessToken | CredentialsType::Lwm2mCredentials => CredentialSecret::None,
        }
    }
}

/// Credentials of a CONNECT packet.
#[derive(Clone, Copy, Debug, Default)]
pub struct MqttLogin<'a> {
    pub client_id: &'a str,
    pub user_name: Option<&'a str>,
    pub password: Option<&'a [u8]>,
}

impl MqttLogin<'_> {
    /// Whether the connection is for provisioning only.
    pub fn is_provision(&self) -> bool {
        self.user_name == Some(PROVISION_NAME) || self.client_id == PROVISION_NAME
    }
}

/// Finds the device of a connection. `find` looks up credentials by id.
pub fn authenticate<'a>(login: &MqttLogin<'_>, find: impl Fn(&str) -> Option<&'a Credential>) -> Option<DeviceId> {
    let basic_of = |id: &str, client_id, user_name| {
        let credential = find(id)?;
        match &credential.secret {
            CredentialSecret::Basic(basic) if basic.matches(client_id, user_name) => Some((credential.device, basic)),
            _ => None,
        }
    };
    let with_password = |device: DeviceId, basic: &BasicCredentials| {
        has_password(basic.password.as_deref(), login.password).then_some(device)
    };
    let client_id = non_empty(Some(login.client_id));
    let Some(user_name) = non_empty(login.user_name) else {
        let (device, basic) = basic_of(&sha3_hash(client_id?), client_id, None)?;
        return with_password(device, basic);
    };
    if let Some(client_id) = client_id {
        let both = sha3_hash(&format!("{client_id}|{user_name}"));
        if let Some((device, basic)) = basic_of(&both, Some(client_id), Some(user_name)) {
            return with_password(device, basic);
        }
    }
    let credential = find(user_name)?;
    match &credential.secret {
        CredentialSecret::None => Some(credential.device),
        CredentialSecret::Basic(basic) if basic.matches(None, Some(user_name)) => {
            with_password(credential.device, basic)
        }
        CredentialSecret::Basic(_) | CredentialSecret::Certificate => None,
    }
}

/// Compares all bytes, so that the duration does not reveal the position of the first difference.
fn has_password(wanted: Option<&str>, given: Option<&[u8]>) -> bool {
    let Some(wanted) = wanted else { return true };
    let given = given.unwrap_or_default();
    let differences = wanted.bytes().zip(given).fold(0, |all, (a, b)| all | (a ^ b));
    differences == 0 && wanted.len() == given.len()
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;
    use crate::ids::Uuid;

    fn basic(client_id: &str, user_name: &str, password: &str) -> DeviceCredentials {
        DeviceCredentials {
            credentials_type: CredentialsType::MqttBasic,
            credentials_value: Some(format!(
                r#"{{"clientId":"{client_id}","userName":"{user_name}","password":"{password}"}}"#
            )),
            ..DeviceCredentials::default()
        }
    }

    fn known(all: Vec<(u8, DeviceCredentials)>) -> HashMap<String, Credential> {
        all.into_iter()
            .map(|(number, mut credentials)| {
                normalize(&mut credentials).unwrap();
                let device = DeviceId(Uuid([number; 16]));
                let secret = CredentialSecret::of(&credentials);
                (credentials.credentials_id.unwrap(), Credential { device, secret })
            })
            .collect()
    }

    #[test]
    fn logins_find_their_device_in_the_documented_order() {
        let token = DeviceCredentials {
            credentials_id: Some("TOKEN".into()),
            ..DeviceCredentials::default()
        };
        let certificate = DeviceCredentials {
            credentials_type: CredentialsType::X509Certificate,
            credentials_value: Some("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n".into()),
            ..DeviceCredentials::default()
        };
        let hash = sha3_hash("AAAA");
        let (client, pair, hashed) = (sha3_hash("client"), sha3_hash("client|user"), sha3_hash("hashed"));
        let known = known(vec![
            (1, token),
            (2, basic("", "user", "secret")),
            (3, basic("client", "", "")),
            (4, basic("client", "user", "other")),
            (5, basic("", "open", "")),
            (6, certificate),
            (7, basic("a|b", "c", "pair")),
            (8, basic("x|y", "", "")),
            (9, basic("", &hashed, "wanted")),
        ]);
        type LoginCase<'a> = (&'a str, Option<&'a str>, Option<&'a str>, Option<u8>);
        let cases: &[LoginCase<'_>] = &[
            ("any", Some("TOKEN"), None, Some(1)),
            ("any", Some("TOKEN"), Some("ignored"), Some(1)),
            ("any", Some("user"), Some("secret"), Some(2)),
            ("any", Some("user"), Some("secreT"), None),
            ("any", Some("user"), Some("secrets"), None),
            ("any", Some("user"), None, None),
            ("client", None, None, Some(3)),
            ("client", Some("user"), Some("other"), Some(4)),
            // Both match: the pair decides, and a wrong password ends the search.
            ("client", Some("user"), Some("secret"), None),
            ("any", Some("open"), None, Some(5)),
            ("any", Some("unknown"), None, None),
            ("any", None, None, None),
            ("any", Some(&hash), None, None),
            // A name that hashes to the id is not accepted: the pair as client id, a different split, or the hash
            // itself.
            ("client|user", None, None, None),
            ("client|user", None, Some("other"), None),
            ("cli\nent|user", None, None, None),
            ("any", Some(&pair), Some("other"), None),
            ("a|b", Some("c"), Some("pair"), Some(7)),
            ("a", Some("b|c"), Some("pair"), None),
            ("a|b|c", None, None, None),
            ("any", Some(&client), None, None),
            ("cli\nent", None, None, None),
            ("x|y", None, None, Some(8)),
            ("x", Some("y"), None, None),
            // A user name that equals the hash of a client id still needs its password.
            ("hashed", None, None, None),
            ("any", Some(&hashed), Some("wanted"), Some(9)),
            ("", None, None, None),
        ];
        for (client_id, user_name, password, device) in cases {
            let login = MqttLogin {
                client_id,
                user_name: *user_name,
                password: password.map(str::as_bytes),
            };
            let found = authenticate(&login, |id| known.get(id));
            assert_eq!(found, device.map(|number| DeviceId(Uuid([number; 16]))), "{login:?}");
        }
    }

    #[test]
    fn certificate_hash_matches_the_pem_hash() {
        let pem = "-----BEGIN CERTIFICATE-----\nAAECAwQF\n-----END CERTIFICATE-----\n";
        assert_eq!(certificate_hash(&[0, 1, 2, 3, 4, 5]), sha3_hash(pem));
    }

    #[test]
    fn invalid_credentials_report_the_reason() {
        let mut cases = [
            (DeviceCredentials::default(), CredentialsError::MissingId),
            (basic("", "", "x"), CredentialsError::EmptyBasic),
            (basic("client", "", "x"), CredentialsError::PasswordWithoutUserName),
        ];
        for (credentials, error) in &mut cases {
            assert_eq!(normalize(credentials), Err(*error));
        }
    }
}
