//! The account at the authority: registered once, then kept in a file of the data directory.
//!
//! A damaged file is an error, never a reason to register a new account: the authority limits the number of accounts,
//! and an external account binding may be valid only once.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use base64ct::{Base64Unpadded, Base64UrlUnpadded, Encoding};
use connectors::Secret;
use instant_acme::{Account, AccountCredentials, ExternalAccountKey, Key, NewAccount};
use rustls::pki_types::PrivateKeyDer;
use serde::{Deserialize, Serialize};

use super::AcmeConfig;
use super::client::{AcmeClient, Exchange};
use super::failure::Failure;
use crate::short_hash;

const MAX_KEY_FILE: u64 = 4096;

/// Connects the account with one at the web site of the authority (RFC 8555, 7.3.4).
#[derive(Clone, Debug)]
pub struct ExternalAccount {
    pub key_id: String,
    /// Base64url without padding.
    pub key: Secret,
}

/// Reads the key of an external account: base64 or base64url. The error names the file, and contains no part of it.
pub fn read_external_account(key_id: &str, file: &Path) -> Result<ExternalAccount, String> {
    let shown = file.display();
    let length = fs::metadata(file)
        .map_err(|error| format!("cannot read {shown}: {error}"))?
        .len();
    if length > MAX_KEY_FILE {
        return Err(format!(
            "{shown} has more than {MAX_KEY_FILE} bytes, expected a key in base64url"
        ));
    }
    let text = fs::read_to_string(file).map_err(|error| format!("cannot read {shown}: {error}"))?;
    let text = text.trim().trim_end_matches('=');
    let key = Base64UrlUnpadded::decode_vec(text).or_else(|_| Base64Unpadded::decode_vec(text));
    match key {
        Ok(key) if !key.is_empty() => Ok(ExternalAccount {
            key_id: key_id.to_owned(),
            key: Secret::new(Base64UrlUnpadded::encode_string(&key)),
        }),
        _ => Err(format!(
            "{shown} does not contain a key in base64url, as the authority shows it"
        )),
    }
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct AccountFile {
    contact: Vec<String>,
    credentials: AccountCredentials,
}

fn path(config: &AcmeConfig) -> PathBuf {
    config
        .files
        .join(format!("account-{}.json", short_hash(&config.directory)))
}

/// Returns the account in the file, or registers one.
pub async fn open(config: &AcmeConfig, exchange: &Exchange) -> Result<Account, Failure> {
    let path = path(config);
    let Some(file) = read(&path).map_err(Failure::rejected)? else {
        return register(config, exchange).await;
    };
    let builder = Account::builder_with_http(Box::new(AcmeClient::new(config, exchange)));
    let account = builder.from_credentials(file.credentials).await;
    let account = account.map_err(|error| match error {
        instant_acme::Error::KeyRejected => Failure::rejected(damaged(&path, "the key is not one")),
        error => Failure::of("directory", &error, exchange),
    })?;
    if file.contact != config.contact {
        let contact: Vec<&str> = config.contact.iter().map(String::as_str).collect();
        match account.update_contacts(&contact).await {
            Ok(()) => store_contact(config)?,
            // The caller registers the account again.
            Err(error) if super::failure::is_unknown_account(&error) => {}
            Err(error) => return Err(Failure::of("contact of the account", &error, exchange)),
        }
    }
    Ok(account)
}

async fn register(config: &AcmeConfig, exchange: &Exchange) -> Result<Account, Failure> {
    let contact: Vec<&str> = config.contact.iter().map(String::as_str).collect();
    let new = NewAccount {
        contact: &contact,
        terms_of_service_agreed: true,
        only_return_existing: false,
    };
    let external = config.external_account.as_ref().map(|external| {
        // `read_external_account` has encoded it.
        let key = Base64UrlUnpadded::decode_vec(external.key.expose()).unwrap_or_default();
        ExternalAccountKey::new(external.key_id.clone(), &key)
    });
    let builder = Account::builder_with_http(Box::new(AcmeClient::new(config, exchange)));
    let created = builder.create(&new, config.directory.clone(), external.as_ref()).await;
    let (account, credentials) = created.map_err(|error| Failure::of("new account", &error, exchange))?;
    store(config, credentials)?;
    tracing::info!(
        account = account.id(),
        directory = config.directory,
        "account registered at the certificate authority"
    );
    Ok(account)
}

/// Registers the account with its key again, because the authority no longer knows it.
pub async fn register_again(config: &AcmeConfig, exchange: &Exchange) -> Result<Account, Failure> {
    let path = path(config);
    let file = read(&path).map_err(Failure::rejected)?;
    let Some(file) = file else {
        return register(config, exchange).await;
    };
    let der = file.credentials.private_key().clone_key();
    let key = Key::from_pkcs8_der(der.clone_key());
    let key = key.map_err(|_| Failure::rejected(damaged(&path, "the key is not one")))?;
    let builder = Account::builder_with_http(Box::new(AcmeClient::new(config, exchange)));
    let created = builder
        .create_from_key((key, PrivateKeyDer::Pkcs8(der)), config.directory.clone())
        .await;
    let (account, credentials) = created.map_err(|error| Failure::of("new account", &error, exchange))?;
    if !config.contact.is_empty() {
        let contact: Vec<&str> = config.contact.iter().map(String::as_str).collect();
        let updated = account.update_contacts(&contact).await;
        updated.map_err(|error| Failure::of("contact of the account", &error, exchange))?;
    }
    store(config, credentials)?;
    tracing::warn!(
        account = account.id(),
        directory = config.directory,
        "the certificate authority did not know the account; it was registered again with the same key"
    );
    Ok(account)
}

fn read(path: &Path) -> Result<Option<AccountFile>, String> {
    let text = match fs::read(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(format!("cannot read {}: {error}", path.display())),
        Ok(text) => text,
    };
    // The text of the error could contain the key.
    let parsed = serde_json::from_slice(&text).map(Some);
    parsed.map_err(|error| damaged(path, &format!("line {}, column {}", error.line(), error.column())))
}

fn damaged(path: &Path, place: &str) -> String {
    format!(
        "the account in {} is damaged ({place}): restore the file from a backup, or delete it, and the server registers \
         a new account",
        path.display()
    )
}

fn store(config: &AcmeConfig, credentials: AccountCredentials) -> Result<(), Failure> {
    let file = AccountFile {
        contact: config.contact.clone(),
        credentials,
    };
    let path = path(config);
    let unwritten = |reason: String| Failure::rejected(format!("cannot write {}: {reason}", path.display()));
    crate::create_private(&config.files).map_err(Failure::rejected)?;
    let text = serde_json::to_vec_pretty(&file).map_err(|error| unwritten(error.to_string()))?;
    storage::copy::replace(&path, &text).map_err(|error| unwritten(error.to_string()))
}

fn store_contact(config: &AcmeConfig) -> Result<(), Failure> {
    match read(&path(config)).map_err(Failure::rejected)? {
        Some(file) => store(config, file.credentials),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_of_an_external_account_is_base64() {
        let directory = std::env::temp_dir().join(format!("tidewire-eab-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let file = directory.join("key");
        for (text, expected) in [("AAEC_w\n", "AAEC_w"), ("AAEC/w==", "AAEC_w")] {
            fs::write(&file, text).unwrap();
            let read = read_external_account("kid", &file).unwrap();
            assert_eq!(read.key.expose(), expected);
        }
        for text in ["", "not base64!", "A"] {
            fs::write(&file, text).unwrap();
            let error = read_external_account("kid", &file).unwrap_err();
            assert!(error.contains("base64url"), "{error}");
        }
        fs::remove_dir_all(&directory).unwrap();
        assert!(
            read_external_account("kid", &file)
                .unwrap_err()
                .starts_with("cannot read")
        );
    }
}
