//! The account at the authority: registered once, then kept in a file of the data directory.
//!
//! The key is on the disk before the account is registered with it. So a full disk, or the end of the process at any
//! point, never leads to a second account.
//!
//! A damaged file is an error, never a reason to register a new account: the authority limits the number of accounts,
//! and an external account binding may be valid only once.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use base64ct::{Base64Unpadded, Base64UrlUnpadded, Encoding};
use connectors::Secret;
use instant_acme::Account;
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair};
use rustls::pki_types::PrivatePkcs8KeyDer;
use serde::{Deserialize, Serialize};

use super::AcmeConfig;
use super::client::{AcmeClient, Exchange};
use super::failure::Failure;
use super::registration::{self, RegisteredAccount};
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
    credentials: Credentials,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Credentials {
    /// URL of the account. `None`: the authority has not confirmed it yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    id: Option<String>,
    /// ECDSA P-256 in PKCS#8, base64url.
    key_pkcs8: String,
    directory: String,
}

impl AccountFile {
    /// Creates a key.
    fn new(config: &AcmeConfig) -> Result<AccountFile, Failure> {
        let key = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &SystemRandom::new());
        let key = key.map_err(|_| Failure::rejected("cannot create the key of the account".to_owned()))?;
        Ok(AccountFile {
            contact: config.contact.clone(),
            credentials: Credentials {
                id: None,
                key_pkcs8: Base64UrlUnpadded::encode_string(key.as_ref()),
                directory: config.directory.clone(),
            },
        })
    }

    fn key(&self, path: &Path) -> Result<Vec<u8>, Failure> {
        Base64UrlUnpadded::decode_vec(&self.credentials.key_pkcs8).map_err(|_| bad_key(path))
    }
}

fn path(config: &AcmeConfig) -> PathBuf {
    config
        .files
        .join(format!("account-{}.json", short_hash(&config.directory)))
}

/// Returns the account in the file, or registers one.
pub async fn open(config: &AcmeConfig, exchange: &Exchange) -> Result<Account, Failure> {
    let path = path(config);
    let Some(mut file) = read(&path).map_err(Failure::rejected)? else {
        let file = AccountFile::new(config)?;
        store(config, &file)?;
        return register(config, exchange, file).await;
    };
    let Some(id) = file.credentials.id.clone() else {
        return register(config, exchange, file).await;
    };
    let account = connect(config, exchange, &file, id).await?;
    if file.contact != config.contact {
        match update_contact(config, &account).await {
            Ok(()) => {
                file.contact = config.contact.clone();
                store(config, &file)?;
            }
            // The caller registers the account again.
            Err(error) if super::failure::is_unknown_account(&error) => {}
            Err(error) => return Err(Failure::of("contact of the account", &error, exchange)),
        }
    }
    Ok(account)
}

async fn connect(config: &AcmeConfig, exchange: &Exchange, file: &AccountFile, id: String) -> Result<Account, Failure> {
    let path = path(config);
    let key = PrivatePkcs8KeyDer::from(file.key(&path)?);
    let builder = Account::builder_with_http(Box::new(AcmeClient::new(config, exchange)));
    let account = builder.from_parts(id, key, file.credentials.directory.clone()).await;
    account.map_err(|error| match error {
        instant_acme::Error::KeyRejected => bad_key(&path),
        error => Failure::of("directory", &error, exchange),
    })
}

async fn update_contact(config: &AcmeConfig, account: &Account) -> Result<(), instant_acme::Error> {
    let contact: Vec<&str> = config.contact.iter().map(String::as_str).collect();
    account.update_contacts(&contact).await
}

/// Registers the stored key. The account of a key that the authority knows stays the same.
async fn register(config: &AcmeConfig, exchange: &Exchange, mut file: AccountFile) -> Result<Account, Failure> {
    let path = path(config);
    let key = EcdsaKeyPair::from_pkcs8(
        &ECDSA_P256_SHA256_FIXED_SIGNING,
        &file.key(&path)?,
        &SystemRandom::new(),
    );
    let key = key.map_err(|_| bad_key(&path))?;
    let client = AcmeClient::new(config, exchange);
    let registered = registration::register(config, &client, &key).await;
    let RegisteredAccount { id, is_new } = registered.map_err(|error| Failure::of("new account", &error, exchange))?;
    let account = connect(config, exchange, &file, id.clone()).await?;
    let has_contact = !config.contact.is_empty() || !file.contact.is_empty();
    if !is_new && has_contact {
        let updated = update_contact(config, &account).await;
        updated.map_err(|error| Failure::of("contact of the account", &error, exchange))?;
    }
    file.contact = config.contact.clone();
    file.credentials.id = Some(id);
    store(config, &file)?;
    tracing::info!(
        account = account.id(),
        directory = config.directory,
        is_new,
        "account registered at the certificate authority"
    );
    Ok(account)
}

/// Registers the account with its key again, because the authority no longer knows it.
pub async fn register_again(config: &AcmeConfig, exchange: &Exchange) -> Result<Account, Failure> {
    tracing::warn!(
        directory = config.directory,
        "the certificate authority does not know the account; registering it again with the same key"
    );
    let file = read(&path(config)).map_err(Failure::rejected)?;
    let file = match file {
        Some(file) => file,
        None => {
            let file = AccountFile::new(config)?;
            store(config, &file)?;
            file
        }
    };
    register(config, exchange, file).await
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

fn bad_key(path: &Path) -> Failure {
    Failure::rejected(damaged(path, "the key is not one"))
}

fn store(config: &AcmeConfig, file: &AccountFile) -> Result<(), Failure> {
    super::write_json(&path(config), file).map_err(Failure::unwritten)
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
