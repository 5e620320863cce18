//! SCRAM-SHA-256 and SCRAM-SHA-512 for enhanced authentication [RFC 5802, RFC 7677; MQTT 5 section 4.12].
//!
//! ```text
//! client   n,,n=alice,r=<client nonce>                       in CONNECT, or in AUTH 0x19
//! server   r=<client nonce><server nonce>,s=<salt>,i=4096    in AUTH 0x18
//! client   c=biws,r=<both nonces>,p=<proof>                  in AUTH 0x18
//! server   v=<server signature>                              in CONNACK, or in AUTH 0x00
//! ```
//!
//! The server computes a few HMACs, so an exchange may run on a data-plane thread. There is no channel binding: `n` and
//! `y` are accepted, `p` is refused. User names are compared as they are; those that SASLprep prohibits are refused.
//!
//! Invariants: an unknown user gets a salt that is always the same in this process, and takes as many steps and as much
//! time as a known one; a proof is compared in constant time; each message is bounded; an exchange is bounded and is
//! used for one proof only, because the caller gives it away.

mod message;

use std::fmt;
use std::sync::Arc;

use base64ct::{Base64, Encoding};
use subtle::ConstantTimeEq;
use zeroize::Zeroizing;

use crate::password::{CreateError, PasswordHash, SCRAM_ITERATIONS, ScramMethod, ScramVerifier, random_bytes};
use crate::users::Users;
use message::{ClientFinal, ClientFirst};

/// Bytes of the server's part of the nonce, before base64.
const NONCE_BYTES: usize = 24;
const DECOY_SALT_BYTES: usize = 16;

/// The server's side of all exchanges.
pub struct ScramServer {
    users: Arc<Users>,
    /// From it follow the salts of unknown users.
    decoy_key: Zeroizing<[u8; 32]>,
}

/// An exchange between its first and its last message.
pub struct ScramExchange {
    method: ScramMethod,
    user_name: Box<str>,
    gs2_header: Box<str>,
    /// client-first-message-bare and server-first-message, with commas after both.
    messages: String,
    nonce: String,
    verifier: PasswordHash,
    /// The reason if the verifier was made up because the user has none.
    decoy: Option<ScramError>,
}

/// A client that knows the password.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScramSuccess {
    pub user_name: Box<str>,
    pub is_superuser: bool,
    /// The last message to the client. With it, the server shows that it knows the verifier.
    pub server_final: Box<[u8]>,
}

/// Reason for the operator. The client learns nothing of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScramError {
    Malformed,
    TooLong,
    ChannelBinding,
    /// The client wants to act as another user.
    AuthorizationIdentity,
    UserName,
    /// The client sent the nonce of another exchange.
    Nonce,
    UnknownUser,
    /// The user has no verifier for the method.
    NoVerifier,
    WrongProof,
    /// The password was changed, or the user was deleted, during the exchange.
    UserChanged,
    NoRandomness,
}

impl ScramError {
    /// Returns the text for the log.
    pub fn text(self) -> &'static str {
        match self {
            ScramError::Malformed => "the SCRAM message is malformed",
            ScramError::TooLong => "the SCRAM message is too long",
            ScramError::ChannelBinding => "SCRAM with channel binding is not supported",
            ScramError::AuthorizationIdentity => "the authorization identity of SCRAM is another user",
            ScramError::UserName => "the user name of SCRAM has characters that are not allowed",
            ScramError::Nonce => "the nonce of SCRAM is that of another exchange",
            ScramError::UnknownUser => "unknown user",
            ScramError::NoVerifier => "the user has no SCRAM verifier for this method: set the password again",
            ScramError::WrongProof => "wrong password",
            ScramError::UserChanged => "the user was changed during the SCRAM exchange",
            ScramError::NoRandomness => "the operating system provides no random bytes",
        }
    }

    /// Returns whether the client tried a password.
    pub fn is_guess(self) -> bool {
        matches!(
            self,
            ScramError::UnknownUser | ScramError::NoVerifier | ScramError::WrongProof
        )
    }
}

impl fmt::Display for ScramError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())
    }
}

impl std::error::Error for ScramError {}

impl ScramExchange {
    /// Returns the user that the client claims to be.
    pub fn user_name(&self) -> &str {
        &self.user_name
    }
}

impl ScramServer {
    /// Fails only if the operating system provides no random bytes.
    pub fn new(users: Arc<Users>) -> Result<ScramServer, CreateError> {
        Ok(ScramServer {
            users,
            decoy_key: Zeroizing::new(random_bytes()?),
        })
    }

    /// Reads the first message of a client. Returns the exchange and the first message of the server.
    pub fn begin(&self, method: ScramMethod, client_first: &[u8]) -> Result<(ScramExchange, Box<[u8]>), ScramError> {
        let random = random_bytes::<NONCE_BYTES>().map_err(|_| ScramError::NoRandomness)?;
        self.begin_with_nonce(method, client_first, &Base64::encode_string(&random))
    }

    fn begin_with_nonce(
        &self,
        method: ScramMethod,
        client_first: &[u8],
        server_nonce: &str,
    ) -> Result<(ScramExchange, Box<[u8]>), ScramError> {
        let first = ClientFirst::parse(client_first)?;
        let (verifier, decoy) = self.verifier(method, &first.user_name);
        let ScramVerifier { salt, iterations, .. } = verifier.scram().expect("`verifier` returns only SCRAM verifiers");
        let nonce = format!("{}{server_nonce}", first.nonce);
        let server_first = format!("r={nonce},s={},i={iterations}", Base64::encode_string(salt));
        let exchange = ScramExchange {
            method,
            messages: format!("{},{server_first},", first.bare),
            gs2_header: first.gs2_header.into(),
            user_name: first.user_name.into(),
            nonce,
            verifier,
            decoy,
        };
        Ok((exchange, server_first.into_bytes().into()))
    }

    /// Reads the last message of a client.
    pub fn finish(&self, exchange: &ScramExchange, client_final: &[u8]) -> Result<ScramSuccess, ScramError> {
        let last = ClientFinal::parse(client_final)?;
        if last.channel_binding != exchange.gs2_header.as_bytes() {
            return Err(ScramError::ChannelBinding);
        }
        if last.nonce != exchange.nonce {
            return Err(ScramError::Nonce);
        }
        let method = exchange.method;
        let verifier = exchange
            .verifier
            .scram()
            .expect("an exchange has only a SCRAM verifier");
        let messages = format!("{}{}", exchange.messages, last.without_proof);
        let client_signature = method.hmac(verifier.stored_key, messages.as_bytes());
        if last.proof.len() != client_signature.len() {
            return Err(ScramError::Malformed);
        }
        let client_key = last.proof.iter().zip(client_signature.iter()).map(|(a, b)| a ^ b);
        let client_key = Zeroizing::new(client_key.collect::<Vec<u8>>());
        let is_right: bool = method.digest(&client_key).ct_eq(verifier.stored_key).into();
        if let Some(error) = exchange.decoy {
            return Err(error);
        }
        if !is_right {
            return Err(ScramError::WrongProof);
        }
        let user = self.users.find(&exchange.user_name).ok_or(ScramError::UserChanged)?;
        if user.hash != exchange.verifier {
            return Err(ScramError::UserChanged);
        }
        let server_signature = method.hmac(verifier.server_key, messages.as_bytes());
        Ok(ScramSuccess {
            user_name: exchange.user_name.clone(),
            is_superuser: user.is_superuser(),
            server_final: format!("v={}", Base64::encode_string(&server_signature))
                .into_bytes()
                .into(),
        })
    }

    /// Returns the verifier of a user. If the user has none, returns one that no password matches, and why.
    fn verifier(&self, method: ScramMethod, user_name: &str) -> (PasswordHash, Option<ScramError>) {
        let is_for_method = |hash: &PasswordHash| hash.scram().is_some_and(|verifier| verifier.method == method);
        let error = match self.users.find(user_name) {
            Some(user) if is_for_method(&user.hash) => return (user.hash.clone(), None),
            Some(_) => ScramError::NoVerifier,
            None => ScramError::UnknownUser,
        };
        // The parameters of an existing user, if it has a verifier: unknown names look as different as known ones.
        let model = self.users.decoy_for(user_name);
        let (iterations, salt_bytes) = match model.scram().filter(|verifier| verifier.method == method) {
            Some(verifier) => (verifier.iterations, verifier.salt.len()),
            None => (SCRAM_ITERATIONS, DECOY_SALT_BYTES),
        };
        let salt = self.decoy_bytes("salt", method, user_name);
        let keys = [
            self.decoy_bytes("stored key", method, user_name),
            self.decoy_bytes("server key", method, user_name),
        ];
        let keys = keys.map(|key| key[..method.digest_bytes()].to_vec()).concat();
        let salt = &salt[..salt_bytes];
        (PasswordHash::of_scram(method, iterations, salt, &keys), Some(error))
    }

    /// Returns 64 bytes that are always the same for a name, and that a client cannot compute.
    fn decoy_bytes(&self, purpose: &str, method: ScramMethod, user_name: &str) -> Zeroizing<Vec<u8>> {
        let message = format!("{purpose}\0{}\0{user_name}", method.name());
        ScramMethod::Sha512.hmac(&*self.decoy_key, message.as_bytes())
    }
}

#[cfg(test)]
mod tests;
