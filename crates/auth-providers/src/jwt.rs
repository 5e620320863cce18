//! Authentication by JSON Web Tokens (RFC 7519), with the claims of EMQX.
//!
//! A token is verified with keys of the configuration or of a key set that a server publishes. The configuration and
//! the keys determine the allowed algorithms, never the token. Keys in the header of a token are not used.

mod algorithm;
mod cache;
mod claims;
mod der;
pub(crate) mod id_token;
mod jwks;
mod key;
pub(crate) mod key_set;
mod token;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use auth::{Credentials, DenyReason, Placeholder, ProviderFuture, ProviderOutcome, RemoteProvider, Template};

use crate::provider::SourceFailure;
use crate::source::QuestionKey;
use cache::VerifiedTokens;
use claims::{ClaimError, ClaimRules, Claims};
use jwks::SetKey;
use key_set::{KeySource, Keys, RemoteKeys};
use token::{TOKEN_BYTES_MAX, TokenError, TokenHeader, UnverifiedToken};

pub use algorithm::Algorithm;
pub use der::key_of_pem;
pub use key::{KeyError, VerificationKey};
pub use key_set::JwksConfig;

/// Where a client sends its token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenField {
    Password,
    UserName,
}

/// Keys that verify tokens.
#[derive(Debug)]
pub enum JwtKeys {
    Fixed(VerificationKey),
    Jwks(Box<JwksConfig>),
}

#[derive(Debug)]
pub struct JwtConfig {
    pub keys: JwtKeys,
    /// Allowed algorithms. Empty: all that the keys can verify.
    pub algorithms: Vec<Algorithm>,
    pub from: TokenField,
    /// Claim with the user name of the session. Needed if the user name is the token.
    pub user_name_claim: Option<String>,
    /// Reject tokens without `exp`.
    pub require_expiry: bool,
    pub leeway: Duration,
    pub disconnect_after_expiry: bool,
    /// Names of claims, and the values that they must have.
    pub verify_claims: Vec<(String, Template)>,
    pub acl_claim: String,
    /// Claim with the groups of the client, or the path to it. `None`: groups are not used.
    pub groups_claim: Option<String>,
    /// Maximum number of verified tokens that are remembered.
    pub cache_size: usize,
}

/// Decides about clients with a token. Ignores clients without one.
pub struct JwtProvider {
    keys: KeySource,
    from: TokenField,
    rules: ClaimRules,
    verified: VerifiedTokens,
}

/// Why a login is rejected.
enum Rejection {
    Token(TokenError),
    Claims(ClaimError),
    NoKeys,
}

impl JwtConfig {
    /// Returns whether a client with a valid token cannot choose its user name.
    pub fn verifies_user_name(&self) -> bool {
        let has_name = |template: &Template| template.placeholders().any(|found| *found == Placeholder::UserName);
        self.user_name_claim.is_some() || self.verify_claims.iter().any(|(_, template)| has_name(template))
    }
}

impl JwtProvider {
    /// The error names the option below `access.jwt`.
    pub fn new(config: JwtConfig) -> Result<JwtProvider, String> {
        if config.from == TokenField::UserName && config.user_name_claim.is_none() {
            return Err("user_name_claim: is empty, but the user name is the token".to_owned());
        }
        for (name, template) in &config.verify_claims {
            let is_unknown =
                |found: &&Placeholder| matches!(found, Placeholder::Password | Placeholder::ClientAttribute(_));
            if let Some(found) = template.placeholders().find(is_unknown) {
                return Err(format!(
                    "verify_claims.{name}: {found} has no value before the token is checked"
                ));
            }
        }
        Ok(JwtProvider {
            keys: key_source(config.keys, config.algorithms)?,
            from: config.from,
            rules: ClaimRules {
                expiry_required: config.require_expiry,
                leeway: config.leeway,
                disconnect_after_expiry: config.disconnect_after_expiry,
                verify: config.verify_claims,
                user_name: config.user_name_claim,
                acl: config.acl_claim,
                groups: config.groups_claim,
            },
            verified: VerifiedTokens::new(config.cache_size),
        })
    }

    /// Returns the task that requests keys from a server. It must run as long as the provider is used.
    pub fn key_requests(&self) -> Option<Pin<Box<dyn Future<Output = ()> + Send>>> {
        match &self.keys {
            KeySource::Fixed(_) => None,
            KeySource::Remote(remote) => Some(Box::pin(remote.clone().run())),
        }
    }

    /// Returns the last failure to request keys from a server, and whether there are no keys now.
    pub fn last_failure(&self) -> Option<(SourceFailure, bool)> {
        let KeySource::Remote(remote) = &self.keys else {
            return None;
        };
        Some((remote.last_failure()?, self.keys.current().is_none()))
    }

    /// Returns why a client is rejected, for an operator: nothing of the token. Does not wait for new keys. May block
    /// like `authenticate_here`.
    pub fn rejection(&self, credentials: &Credentials) -> Option<String> {
        self.unverified(credentials)?;
        let verified = self.verify(credentials).unwrap_or_else(|| Err(self.no_key()));
        match verified {
            Ok(claims) => claims
                .login(&self.rules, credentials, SystemTime::now())
                .err()
                .map(|error| error.to_string()),
            Err(rejection) => Some(rejection.text()),
        }
    }

    fn token_of<'a>(&self, credentials: &'a Credentials) -> Option<&'a [u8]> {
        match self.from {
            TokenField::Password => credentials.password.as_ref().map(|password| password.expose()),
            TokenField::UserName => credentials.user_name.as_deref().map(str::as_bytes),
        }
    }

    /// Returns the claims of a token that was verified before.
    fn verified_before(&self, token: &[u8]) -> Option<Arc<Claims>> {
        // Longer tokens are never valid.
        let keys = self.keys.current().filter(|_| token.len() <= TOKEN_BYTES_MAX)?;
        self.verified.find(&QuestionKey::of(&[token]), keys.generation)
    }

    fn login(&self, claims: &Claims, credentials: &Credentials) -> ProviderOutcome {
        match claims.login(&self.rules, credentials, SystemTime::now()) {
            Ok(login) => ProviderOutcome::Allow(login),
            Err(error) => denied(Rejection::Claims(error), credentials),
        }
    }

    /// Checks a token with the current keys. `None`: no key can have signed it, but there may be new keys.
    fn verify(&self, credentials: &Credentials) -> Option<Result<Arc<Claims>, Rejection>> {
        let (bytes, token) = self.unverified(credentials)?;
        let header = match &token.header {
            Ok(header) => header,
            Err(error) => return Some(Err(Rejection::Token(*error))),
        };
        let keys = self.keys.current().filter(|keys| keys.have_candidate(header))?;
        Some(self.verify_with(&keys, bytes, &token, header))
    }

    fn verify_with(
        &self,
        keys: &Keys,
        bytes: &[u8],
        token: &UnverifiedToken<'_>,
        header: &TokenHeader,
    ) -> Result<Arc<Claims>, Rejection> {
        if !keys.have_signed(token, header) {
            return Err(Rejection::Token(TokenError::Signature));
        }
        let claims = token.claims().map_err(Rejection::Token)?;
        let claims = Arc::new(Claims::read(&self.rules, &claims).map_err(Rejection::Claims)?);
        self.verified
            .insert(QuestionKey::of(&[bytes]), keys.generation, claims.clone());
        Ok(claims)
    }

    /// Returns the bytes of the token, and its parts. `None` if the client has no token.
    fn unverified<'a>(&self, credentials: &'a Credentials) -> Option<(&'a [u8], UnverifiedToken<'a>)> {
        let bytes = self.token_of(credentials)?;
        Some((bytes, UnverifiedToken::parse(bytes)?))
    }

    fn outcome(&self, verified: Result<Arc<Claims>, Rejection>, credentials: &Credentials) -> ProviderOutcome {
        match verified {
            Ok(claims) => self.login(&claims, credentials),
            Err(rejection) => denied(rejection, credentials),
        }
    }

    /// Why a token that no key can have signed is rejected.
    fn no_key(&self) -> Rejection {
        match self.keys.current() {
            Some(_) => Rejection::Token(TokenError::NoKey),
            None => Rejection::NoKeys,
        }
    }
}

impl RemoteProvider for JwtProvider {
    /// Waits for new keys if none of the current ones can have signed the token. A chain asks only for such a token, so
    /// the few signatures that are verified here do not occupy the thread for long.
    fn authenticate(self: Arc<Self>, credentials: Arc<Credentials>) -> ProviderFuture {
        Box::pin(async move {
            if let Some(outcome) = self.authenticate_here(&credentials) {
                return outcome;
            }
            if let KeySource::Remote(remote) = &self.keys {
                remote.renew().await;
            }
            let verified = self.verify(&credentials).unwrap_or_else(|| Err(self.no_key()));
            self.outcome(verified, &credentials)
        })
    }

    fn authenticate_now(&self, credentials: &Credentials) -> Option<ProviderOutcome> {
        let Some((bytes, token)) = self.unverified(credentials) else {
            return Some(ProviderOutcome::Ignore);
        };
        if let Some(claims) = self.verified_before(bytes) {
            return Some(self.login(&claims, credentials));
        }
        let error = token.header.as_ref().err()?;
        Some(denied(Rejection::Token(*error), credentials))
    }

    /// Verifies the signature, on the threads for password hashes.
    fn authenticate_here(&self, credentials: &Credentials) -> Option<ProviderOutcome> {
        if let Some(outcome) = self.authenticate_now(credentials) {
            return Some(outcome);
        }
        let verified = match (self.verify(credentials), &self.keys) {
            (Some(verified), _) => verified,
            (None, KeySource::Fixed(_)) => Err(self.no_key()),
            (None, KeySource::Remote(_)) => return None,
        };
        Some(self.outcome(verified, credentials))
    }
}

/// Returns the keys with the allowed algorithms.
fn key_source(keys: JwtKeys, allowed: Vec<Algorithm>) -> Result<KeySource, String> {
    let key = match keys {
        JwtKeys::Jwks(config) => {
            if let Some(hmac) = allowed.iter().find(|algorithm| Algorithm::HMAC.contains(algorithm)) {
                return Err(format!(
                    "algorithms: {} needs a shared secret, which a key set cannot have",
                    hmac.name()
                ));
            }
            return Ok(KeySource::Remote(Arc::new(RemoteKeys::new(*config, allowed)?)));
        }
        JwtKeys::Fixed(key) => key,
    };
    let possible = key.algorithms();
    if let Some(other) = allowed.iter().find(|algorithm| !possible.contains(algorithm)) {
        let names: Vec<&str> = possible.iter().map(|algorithm| algorithm.name()).collect();
        return Err(format!(
            "algorithms: found {}, expected an algorithm for which the key is suitable: {}",
            other.name(),
            names.join(", ")
        ));
    }
    let key = SetKey {
        id: None,
        algorithms: if allowed.is_empty() { possible } else { allowed },
        key,
    };
    Ok(KeySource::Fixed(Arc::new(Keys::new(vec![key], 1))))
}

impl Rejection {
    /// Contains nothing of the token.
    fn text(&self) -> String {
        match self {
            Rejection::Token(error) => error.text().to_owned(),
            Rejection::Claims(error) => error.to_string(),
            Rejection::NoKeys => "there are no keys".to_owned(),
        }
    }
}

/// Logs the reason.
fn denied(rejection: Rejection, credentials: &Credentials) -> ProviderOutcome {
    let reason = match rejection {
        Rejection::Claims(ClaimError::Expired) => DenyReason::Expired,
        Rejection::Token(_) | Rejection::Claims(_) => DenyReason::NotAuthorized,
        Rejection::NoKeys => DenyReason::Unavailable,
    };
    tracing::debug!(
        client_id = credentials.client_id,
        reason = rejection.text(),
        "token rejected"
    );
    ProviderOutcome::Deny(reason)
}

#[cfg(test)]
mod tests;
