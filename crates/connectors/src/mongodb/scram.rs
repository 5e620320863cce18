//! The client side of SCRAM-SHA-256 and SCRAM-SHA-1 [RFC 5802, RFC 7677], as MongoDB uses them.
//!
//! The server proves that it knows the password, too. So an attacker that answers in its place learns no password.

use std::fmt::Write;
use std::num::NonZeroU32;

use base64ct::{Base64, Encoding};
use md5::{Digest, Md5};
use ring::{digest, hmac, pbkdf2};

/// Range of iterations. A server could otherwise make the password easy to guess, or occupy this process.
const ITERATIONS_MIN: u32 = 4096;
const ITERATIONS_MAX: u32 = 200_000;

/// A mechanism.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ScramMechanism {
    Sha1,
    Sha256,
}

impl ScramMechanism {
    pub fn name(self) -> &'static str {
        match self {
            ScramMechanism::Sha1 => "SCRAM-SHA-1",
            ScramMechanism::Sha256 => "SCRAM-SHA-256",
        }
    }

    fn hmac(self) -> hmac::Algorithm {
        match self {
            ScramMechanism::Sha1 => hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY,
            ScramMechanism::Sha256 => hmac::HMAC_SHA256,
        }
    }

    fn digest(self) -> &'static digest::Algorithm {
        match self {
            ScramMechanism::Sha1 => &digest::SHA1_FOR_LEGACY_USE_ONLY,
            ScramMechanism::Sha256 => &digest::SHA256,
        }
    }

    fn pbkdf2(self) -> pbkdf2::Algorithm {
        match self {
            ScramMechanism::Sha1 => pbkdf2::PBKDF2_HMAC_SHA1,
            ScramMechanism::Sha256 => pbkdf2::PBKDF2_HMAC_SHA256,
        }
    }

    fn sign(self, key: &[u8], text: &[u8]) -> Vec<u8> {
        hmac::sign(&hmac::Key::new(self.hmac(), key), text).as_ref().to_vec()
    }
}

/// A login in progress.
pub(super) struct ScramLogin {
    mechanism: ScramMechanism,
    password: String,
    nonce: String,
    /// First message without its prefix.
    first: String,
}

/// The last message of the client, and the proof that the server must send.
pub(super) struct ScramProof {
    pub message: String,
    server_signature: Vec<u8>,
}

impl ScramLogin {
    /// `nonce` is random text without commas.
    pub fn new(mechanism: ScramMechanism, user: &str, password: &str, nonce: String) -> Result<ScramLogin, String> {
        let password = match mechanism {
            // The password of the mechanism is a hash.
            ScramMechanism::Sha1 => hex(&Md5::digest(format!("{user}:mongo:{password}"))),
            ScramMechanism::Sha256 => {
                let prepared = stringprep::saslprep(password);
                prepared
                    .map_err(|_| "the password has characters that SCRAM does not allow")?
                    .into_owned()
            }
        };
        let user = user.replace('=', "=3D").replace(',', "=2C");
        Ok(ScramLogin {
            mechanism,
            password,
            first: format!("n={user},r={nonce}"),
            nonce,
        })
    }

    pub fn first_message(&self) -> String {
        format!("n,,{}", self.first)
    }

    /// Answers the first message of the server.
    pub fn answer(&self, server_first: &[u8]) -> Result<ScramProof, String> {
        let malformed = || "the server's message of the login is malformed".to_owned();
        let server_first = str::from_utf8(server_first).map_err(|_| malformed())?;
        let field = |name: &str| server_first.split(',').find_map(|field| field.strip_prefix(name));
        let nonce = field("r=").ok_or_else(malformed)?;
        if !nonce.starts_with(&self.nonce) || nonce.len() == self.nonce.len() {
            return Err("the server's message of the login belongs to another login".to_owned());
        }
        let salt = field("s=").and_then(|salt| Base64::decode_vec(salt).ok());
        let salt = salt.ok_or_else(malformed)?;
        let iterations: u32 = field("i=").and_then(|text| text.parse().ok()).ok_or_else(malformed)?;
        let iterations = NonZeroU32::new(iterations)
            .filter(|count| (ITERATIONS_MIN..=ITERATIONS_MAX).contains(&count.get()))
            .ok_or_else(|| {
                format!("the server wants {iterations} iterations, expected {ITERATIONS_MIN} to {ITERATIONS_MAX}")
            })?;
        let mut salted = vec![0; self.mechanism.digest().output_len()];
        pbkdf2::derive(
            self.mechanism.pbkdf2(),
            iterations,
            &salt,
            self.password.as_bytes(),
            &mut salted,
        );
        let client_key = self.mechanism.sign(&salted, b"Client Key");
        let stored_key = digest::digest(self.mechanism.digest(), &client_key);
        let without_proof = format!("c=biws,r={nonce}");
        let signed = format!("{},{server_first},{without_proof}", self.first);
        let signature = self.mechanism.sign(stored_key.as_ref(), signed.as_bytes());
        let proof: Vec<u8> = client_key
            .iter()
            .zip(&signature)
            .map(|(key, byte)| key ^ byte)
            .collect();
        let server_key = self.mechanism.sign(&salted, b"Server Key");
        Ok(ScramProof {
            message: format!("{without_proof},p={}", Base64::encode_string(&proof)),
            server_signature: self.mechanism.sign(&server_key, signed.as_bytes()),
        })
    }
}

impl ScramProof {
    /// Checks the last message of the server.
    pub fn check(&self, server_final: &[u8]) -> Result<(), String> {
        let signature = server_final
            .strip_prefix(b"v=")
            .and_then(|text| str::from_utf8(text).ok());
        let signature = signature.and_then(|text| Base64::decode_vec(text.split(',').next()?).ok());
        match signature {
            Some(signature) if signature == self.server_signature => Ok(()),
            _ => Err("the server does not know the password of the user".to_owned()),
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// Returns random text.
pub(super) fn nonce() -> Result<String, String> {
    let mut bytes = [0; 24];
    getrandom::fill(&mut bytes).map_err(|error| format!("the operating system provides no random bytes: {error}"))?;
    Ok(Base64::encode_string(&bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn login(mechanism: ScramMechanism, password: &str, nonce: &str) -> ScramLogin {
        ScramLogin::new(mechanism, "user", password, nonce.to_owned()).unwrap()
    }

    #[test]
    fn messages_are_those_of_the_standard() {
        let login = login(ScramMechanism::Sha256, "pencil", "rOprNGfwEbeRWgbNEkqO");
        assert_eq!(login.first_message(), "n,,n=user,r=rOprNGfwEbeRWgbNEkqO");
        let server = b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096";
        let proof = login.answer(server).unwrap();
        assert_eq!(
            proof.message,
            "c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
        );
        assert_eq!(proof.check(b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="), Ok(()));
        for wrong in [
            &b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G5="[..],
            b"e=invalid-proof",
            b"",
            b"v=",
        ] {
            assert!(proof.check(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn passwords_of_sha1_are_hashed_as_in_mongodb() {
        // An example of the specification of MongoDB's drivers.
        let login = login(ScramMechanism::Sha1, "pencil", "fyko+d2lbbFgONRv9qkxdawL");
        let server = b"r=fyko+d2lbbFgONRv9qkxdawLHo+Vgk7qvUOKUwuWLIWg4l/9SraGMHEE,s=rQ9ZY3MntBeuP3E1TDVC4w==,i=10000";
        let proof = login.answer(server).unwrap();
        assert_eq!(
            proof.message,
            "c=biws,r=fyko+d2lbbFgONRv9qkxdawLHo+Vgk7qvUOKUwuWLIWg4l/9SraGMHEE,p=MC2T8BvbmWRckDw8oWl5IVghwCY="
        );
        assert_eq!(proof.check(b"v=UMWeI25JD1yNYZRMpZ4VHvhZ9e0="), Ok(()));
    }

    #[test]
    fn messages_of_a_wrong_server_are_refused() {
        let login = login(ScramMechanism::Sha256, "pencil", "abc");
        for (message, reason) in [
            (&b"r=abc,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"[..], "another login"),
            (b"r=xyz123,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096", "another login"),
            (b"r=abc1,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=1", "1 iterations"),
            (b"r=abc1,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4000000000", "iterations"),
            (b"r=abc1,s=!,i=4096", "malformed"),
            (b"r=abc1,i=4096", "malformed"),
            (b"\xFF", "malformed"),
            (b"", "malformed"),
        ] {
            let error = login.answer(message).map(|_| ()).unwrap_err();
            assert!(error.contains(reason), "{error}");
        }
    }

    #[test]
    fn user_names_are_escaped() {
        let login = ScramLogin::new(ScramMechanism::Sha256, "a=b,c", "p", "n".to_owned()).unwrap();
        assert_eq!(login.first_message(), "n,,n=a=3Db=2Cc,r=n");
        assert!(ScramLogin::new(ScramMechanism::Sha256, "u", "\u{0007}", "n".to_owned()).is_err());
    }
}
