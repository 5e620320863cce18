//! What devices log in with: how credentials are found, and in which order ThingsBoard looks.
//!
//! A connection with a user name is first looked up by client identifier and user name together, then by the user name
//! alone, which is an access token or the name of basic credentials. With an access token the password does not matter.

use std::fmt;

use sha3::{Digest, Sha3_256};

use crate::ids::DeviceId;
use crate::model::{CredentialsType, DeviceCredentials, MqttBasic};

const CERTIFICATE_MARKS: [&str; 2] = ["-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"];

/// User name or client identifier of a connection that may only provision a device.
pub const PROVISION_NAME: &str = "provision";

/// Hexadecimal SHA3-256 of a text without line ends and marks of PEM, as ThingsBoard hashes certificates and names.
pub fn sha3_hash(text: &str) -> String {
    let digest = Sha3_256::digest(trim_certificate(text).as_bytes());
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// As a certificate's credentials are found: the hash of its DER in base64.
pub fn certificate_hash(der: &[u8]) -> String {
    use base64ct::{Base64, Encoding};
    sha3_hash(&Base64::encode_string(der))
}

fn trim_certificate(text: &str) -> String {
    let mut text = text.replace(['\n', '\r'], "");
    for mark in CERTIFICATE_MARKS {
        text = text.replace(mark, "");
    }
    text
}

/// Why credentials cannot be saved; the texts are ThingsBoard's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CredentialsError {
    MissingId,
    InvalidBasicBody,
    EmptyBasic,
    PasswordWithoutUserName,
    MissingCertificate,
    ControlCharacters,
    /// No device of this platform speaks LwM2M.
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
            CredentialsError::Lwm2m => "LwM2M credentials are not supported: no LwM2M transport is here",
        })
    }
}

impl std::error::Error for CredentialsError {}

/// Brings credentials to the form in which they are stored, with the identifier that they are found by.
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

/// Credentials as they lie in memory for the moment a device connects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Credential {
    pub device: DeviceId,
    pub secret: Secret,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Secret {
    /// The identifier says it all.
    None,
    Certificate,
    Basic(Box<Basic>),
}

/// What a client has to say. The identifier of the credentials is no proof of it: other names have the same one, such as the
/// client identifier `C|U`, which is hashed as the client identifier `C` with the user name `U` is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Basic {
    client_id: Option<Box<str>>,
    user_name: Option<Box<str>>,
    /// `None`: any password will do, and so will none.
    password: Option<Box<str>>,
}

impl Basic {
    fn is_of(&self, client_id: Option<&str>, user_name: Option<&str>) -> bool {
        self.client_id.as_deref() == client_id && self.user_name.as_deref() == user_name
    }
}

impl Secret {
    pub fn of(credentials: &DeviceCredentials) -> Secret {
        match credentials.credentials_type {
            CredentialsType::X509Certificate => Secret::Certificate,
            CredentialsType::MqttBasic => {
                let body = credentials.credentials_value.as_deref().unwrap_or_default();
                let basic: MqttBasic = serde_json::from_str(body).unwrap_or_default();
                let some = |text: Option<String>| text.filter(|text| !text.is_empty()).map(String::into_boxed_str);
                Secret::Basic(Box::new(Basic {
                    client_id: some(basic.client_id),
                    user_name: some(basic.user_name),
                    password: some(basic.password),
                }))
            }
            CredentialsType::AccessToken | CredentialsType::Lwm2mCredentials => Secret::None,
        }
    }
}

/// What a CONNECT packet has.
#[derive(Clone, Copy, Debug, Default)]
pub struct MqttLogin<'a> {
    pub client_id: &'a str,
    pub user_name: Option<&'a str>,
    pub password: Option<&'a [u8]>,
}

impl MqttLogin<'_> {
    /// The connection wants nothing but to provision a device.
    pub fn is_provision(&self) -> bool {
        self.user_name == Some(PROVISION_NAME) || self.client_id == PROVISION_NAME
    }
}

/// Finds the device of a connection; `find` knows credentials by their identifier.
pub fn authenticate<'a>(login: &MqttLogin<'_>, find: impl Fn(&str) -> Option<&'a Credential>) -> Option<DeviceId> {
    let basic_of = |id: &str, client_id, user_name| {
        let credential = find(id)?;
        match &credential.secret {
            Secret::Basic(basic) if basic.is_of(client_id, user_name) => Some((credential.device, basic)),
            _ => None,
        }
    };
    let with_password =
        |device: DeviceId, basic: &Basic| has_password(basic.password.as_deref(), login.password).then_some(device);
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
        Secret::None => Some(credential.device),
        Secret::Basic(basic) if basic.is_of(None, Some(user_name)) => with_password(credential.device, basic),
        Secret::Basic(_) | Secret::Certificate => None,
    }
}

/// Compares all bytes, however early they differ.
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
                let secret = Secret::of(&credentials);
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
        type Case<'a> = (&'a str, Option<&'a str>, Option<&'a str>, Option<u8>);
        let cases: &[Case<'_>] = &[
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
            ("any", Some("nobody"), None, None),
            ("any", None, None, None),
            ("any", Some(&hash), None, None),
            // What is hashed into the identifier is no name of its own: neither the pair as a client id, nor divided elsewhere, nor the hash.
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
            // Whoever has the hash of a client id as its user name has a password still.
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
    fn a_certificate_is_found_by_its_der() {
        let pem = "-----BEGIN CERTIFICATE-----\nAAECAwQF\n-----END CERTIFICATE-----\n";
        assert_eq!(certificate_hash(&[0, 1, 2, 3, 4, 5]), sha3_hash(pem));
    }

    #[test]
    fn what_cannot_be_saved_says_why() {
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
