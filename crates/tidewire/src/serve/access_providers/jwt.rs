//! The provider of JSON Web Tokens.

use std::sync::Arc;

use auth::Template;
use auth_providers::jwt::{JwksConfig, JwtConfig, JwtKeys, JwtProvider, TokenField};
use connectors::TlsConfig;
use connectors::http::HttpConnectorConfig;

use crate::config::Config;
use crate::config::options::access::jwt::{Jwt, TokenFrom, read_public_key};

/// Claim with the user name if the user name of CONNECT is the token.
const SUBJECT: &str = "sub";
/// Requests for keys come one after the other.
const CONNECTIONS_MAX: u32 = 2;

/// The error names the option.
pub fn provider(config: &Config) -> Result<Arc<JwtProvider>, String> {
    if let Some((key, problem)) = Jwt::problems(config).first() {
        return Err(format!("{key}: {problem}"));
    }
    let jwt = &config.jwt;
    let claims = config
        .jwt_claims
        .iter()
        .map(|(name, text)| match Template::parse(text) {
            Ok(template) => Ok((name.clone(), template)),
            Err(error) => Err(format!("access.jwt.verify_claims.{name}: {error}")),
        });
    let settings = JwtConfig {
        keys: keys(jwt)?,
        algorithms: jwt.allowed_algorithms(),
        from: match jwt.from {
            TokenFrom::Password => TokenField::Password,
            TokenFrom::UserName => TokenField::UserName,
        },
        user_name_claim: match (jwt.user_name_claim.as_str(), jwt.from) {
            ("", TokenFrom::Password) => None,
            ("", TokenFrom::UserName) => Some(SUBJECT.to_owned()),
            (name, _) => Some(name.to_owned()),
        },
        require_expiry: jwt.require_expiry,
        leeway: jwt.leeway,
        disconnect_after_expiry: jwt.disconnect_after_expire,
        verify_claims: claims.collect::<Result<_, _>>()?,
        acl_claim: jwt.acl_claim_name.clone(),
        groups_claim: jwt.groups_claim.0.clone(),
        cache_size: jwt.cache_size as usize,
    };
    if !settings.verifies_user_name() {
        warn_of_free_user_names(config);
    }
    let provider = JwtProvider::new(settings).map_err(|error| format!("access.jwt.{error}"))?;
    Ok(Arc::new(provider))
}

fn warn_of_free_user_names(config: &Config) {
    tracing::warn!(
        "access.jwt does not verify the user name: a client with a valid token can use any user name; set \
         access.jwt.user_name_claim or a claim with ${{username}} in access.jwt.verify_claims"
    );
    for (name, _) in config
        .client_attrs
        .iter()
        .filter(|(_, source)| source.0.uses_user_name())
    {
        tracing::warn!(
            "access.client_attrs.{name} is a part of the user name, which access.jwt does not verify: a client with a \
             valid token can choose the attribute"
        );
    }
}

fn keys(jwt: &Jwt) -> Result<JwtKeys, String> {
    if let Some(key) = jwt.secret_key() {
        return key
            .map(JwtKeys::Fixed)
            .map_err(|error| format!("access.jwt.secret: {error}"));
    }
    if let Some(path) = &jwt.public_key_file.0 {
        let key = read_public_key(path).map_err(|error| format!("access.jwt.public_key_file: {error}"))?;
        return Ok(JwtKeys::Fixed(key));
    }
    let url = jwt.jwks_url.0.clone().unwrap_or_default();
    if !url.starts_with("https:") {
        tracing::warn!(
            "access.jwt.jwks_url does not begin with https: an attacker who can change the answer can log in as any client"
        );
    }
    Ok(JwtKeys::Jwks(Box::new(JwksConfig {
        server: HttpConnectorConfig {
            url,
            headers: Default::default(),
            connections_max: CONNECTIONS_MAX,
            connect_timeout_ms: jwt.timeout.as_millis() as u64,
            idle_timeout_ms: 30_000,
            tls: TlsConfig {
                ca_file: jwt.ca_file.0.clone(),
                ..TlsConfig::default()
            },
        },
        refresh_interval: jwt.refresh_interval,
        max_age: jwt.max_key_age.0,
        timeout: jwt.timeout,
    })))
}
