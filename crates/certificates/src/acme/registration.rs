//! Registers the key of an account at the authority (RFC 8555, 7.3).
//!
//! The ACME library creates the key and the account in one step if the account needs an external one. The key would be
//! lost if it could not be written afterwards. Here, the caller has stored the key before. A further registration of
//! the same key returns the same account (RFC 8555, 7.3.1).

use std::convert::Infallible;

use base64ct::{Base64UrlUnpadded, Encoding};
use bytes::Bytes;
use connectors::http::HttpAnswer;
use http_body_util::Full;
use hyper::{Method, Request};
use instant_acme::{Error, Problem};
use ring::hmac;
use ring::rand::SystemRandom;
use ring::signature::{EcdsaKeyPair, KeyPair};
use serde::Deserialize;
use serde_json::{Value, json};

use super::AcmeConfig;
use super::client::{AcmeClient, header};
use super::failure::is_of_kind;

/// Attempts with another nonce, because the authority may reject an old one.
const ATTEMPTS: usize = 3;

#[derive(Debug)]
pub struct RegisteredAccount {
    /// URL of the account.
    pub id: String,
    /// The authority did not know the key before.
    pub is_new: bool,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct DirectoryUrls {
    new_nonce: String,
    new_account: String,
}

pub async fn register(
    config: &AcmeConfig,
    client: &AcmeClient,
    key: &EcdsaKeyPair,
) -> Result<RegisteredAccount, Error> {
    let directory = send(client, Method::GET, &config.directory, Bytes::new()).await?;
    let urls: DirectoryUrls = serde_json::from_slice(&directory.body)?;
    let jwk = public_key(key);
    let payload = account(config, &jwk, &urls.new_account);
    let mut last = None;
    for _ in 0..ATTEMPTS {
        let nonce = nonce(client, &urls.new_nonce).await?;
        let protected = json!({ "alg": "ES256", "jwk": jwk, "nonce": nonce, "url": urls.new_account });
        let body = signed(&protected, &payload, |message| {
            let signature = key.sign(&SystemRandom::new(), message);
            signature
                .map(|signature| signature.as_ref().to_vec())
                .map_err(|_| Error::Crypto)
        })?;
        let answer = send(client, Method::POST, &urls.new_account, body.to_string().into()).await?;
        if matches!(answer.status, 200 | 201) {
            let id = header(&answer, "location").ok_or(Error::Str("the URL of the account"))?;
            return Ok(RegisteredAccount {
                id: id.to_owned(),
                is_new: answer.status == 201,
            });
        }
        let error = Error::Api(serde_json::from_slice::<Problem>(&answer.body)?);
        if !is_of_kind(&error, "badNonce") {
            return Err(error);
        }
        last = Some(error);
    }
    Err(last.unwrap_or(Error::Str("an accepted nonce")))
}

async fn nonce(client: &AcmeClient, url: &str) -> Result<String, Error> {
    let answer = send(client, Method::HEAD, url, Bytes::new()).await?;
    let nonce = header(&answer, "replay-nonce").ok_or(Error::Str("a nonce"))?;
    Ok(nonce.to_owned())
}

async fn send(client: &AcmeClient, method: Method, url: &str, body: Bytes) -> Result<HttpAnswer, Error> {
    let request = Request::builder()
        .method(method)
        .uri(url)
        .header("user-agent", concat!("tidewire/", env!("CARGO_PKG_VERSION")));
    let request = match body.is_empty() {
        true => request,
        false => request.header("content-type", "application/jose+json"),
    };
    client.send(request.body(Full::new(body))?).await
}

/// The account to create.
fn account(config: &AcmeConfig, jwk: &Value, new_account_url: &str) -> Value {
    let mut account = json!({ "termsOfServiceAgreed": true });
    if !config.contact.is_empty() {
        account["contact"] = json!(config.contact);
    }
    if let Some(external) = &config.external_account {
        // `read_external_account` has encoded it.
        let secret = Base64UrlUnpadded::decode_vec(external.key.expose()).unwrap_or_default();
        let secret = hmac::Key::new(hmac::HMAC_SHA256, &secret);
        let protected = json!({ "alg": "HS256", "kid": external.key_id, "url": new_account_url });
        let signature = |message: &[u8]| Ok(hmac::sign(&secret, message).as_ref().to_vec());
        let Ok(binding) = signed::<Infallible>(&protected, jwk, signature);
        account["externalAccountBinding"] = binding;
    }
    account
}

/// A JSON Web Signature in the form that ACME requires (RFC 8555, 6.2).
fn signed<E>(protected: &Value, payload: &Value, sign: impl FnOnce(&[u8]) -> Result<Vec<u8>, E>) -> Result<Value, E> {
    let encode = |value: &Value| Base64UrlUnpadded::encode_string(value.to_string().as_bytes());
    let (protected, payload) = (encode(protected), encode(payload));
    let signature = sign(format!("{protected}.{payload}").as_bytes())?;
    Ok(json!({
        "protected": protected,
        "payload": payload,
        "signature": Base64UrlUnpadded::encode_string(&signature),
    }))
}

/// The public key as a JSON Web Key (RFC 7517).
fn public_key(key: &EcdsaKeyPair) -> Value {
    // An uncompressed point: the byte 4, and both coordinates.
    let point = key.public_key().as_ref().get(1..).unwrap_or_default();
    let (x, y) = point.split_at(point.len() / 2);
    let encode = Base64UrlUnpadded::encode_string;
    json!({ "crv": "P-256", "kty": "EC", "x": encode(x), "y": encode(y) })
}

#[cfg(test)]
mod tests {
    use ring::signature::{ECDSA_P256_SHA256_FIXED, ECDSA_P256_SHA256_FIXED_SIGNING, UnparsedPublicKey};

    use super::*;

    #[test]
    fn signature_is_that_of_the_key() {
        let random = SystemRandom::new();
        let document = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &random).unwrap();
        let key = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, document.as_ref(), &random).unwrap();
        let sign = |message: &[u8]| Ok(key.sign(&random, message).unwrap().as_ref().to_vec());
        let Ok(signed) = signed::<Infallible>(&json!({ "alg": "ES256" }), &json!({}), sign);
        let part = |name: &str| signed[name].as_str().unwrap().to_owned();
        let signature = Base64UrlUnpadded::decode_vec(&part("signature")).unwrap();
        let jwk = public_key(&key);
        let coordinate = |name: &str| Base64UrlUnpadded::decode_vec(jwk[name].as_str().unwrap()).unwrap();
        let point = [vec![4], coordinate("x"), coordinate("y")].concat();
        let message = format!("{}.{}", part("protected"), part("payload"));
        UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, point)
            .verify(message.as_bytes(), &signature)
            .unwrap();
    }
}
