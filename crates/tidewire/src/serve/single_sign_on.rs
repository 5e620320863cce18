//! Logins to the console with OpenID Connect: connects the client of `auth-providers` with the API.

use std::sync::Arc;

use api::{IdentityProvider, ProviderAnswer, ProviderCode, ProviderFailure, ProviderIdentity, SingleSignOnConfig};
use auth_providers::oidc::{AuthorizationCode, LoginSecrets, OidcClient, OidcConfig, OidcError};
use connectors::TlsConfig;
use web::pending_logins::StartedLogin;

use crate::config::Config;
use crate::config::options::single_sign_on;

/// Path to which the provider sends the browser, below `external_url`.
const RETURN_PATH: &str = "/api/v1/oidc/callback";

struct Provider(OidcClient);

/// Beginnings of addresses whose traffic stays on the machine of the browser.
const LOCAL_URLS: [&str; 3] = ["http://localhost:", "http://127.", "http://[::1]"];

/// Returns `None` if it is not configured. Sends no request: the server starts also if the provider does not answer.
/// The error names the option.
pub fn config(config: &Config) -> Result<Option<SingleSignOnConfig>, String> {
    let Some(issuer) = config.oidc.issuer() else {
        return Ok(None);
    };
    if let Some((key, problem)) = single_sign_on::OidcConfig::problems(config).first() {
        return Err(format!("{key}: {problem}"));
    }
    if issuer.starts_with("http:") {
        tracing::warn!(
            "api.oidc.issuer does not begin with https: an attacker who can change its answers can log in as an administrator"
        );
    }
    let options = &config.oidc.options;
    let external_url = config.oidc.external_url();
    if external_url.starts_with("http:") && !LOCAL_URLS.iter().any(|local| external_url.starts_with(local)) {
        tracing::warn!(
            "api.oidc.external_url does not begin with https: an attacker on the network path can take over logins"
        );
    }
    let client = OidcClient::new(OidcConfig {
        issuer: issuer.to_owned(),
        client_id: options.client_id.clone(),
        client_secret: options.client_secret.0.clone(),
        scopes: options.scopes.clone(),
        redirect_url: format!("{external_url}{RETURN_PATH}"),
        user_name_claim: options.user_name_claim.clone(),
        roles_claim: options.roles_claim.clone(),
        timeout: options.timeout,
        tls: TlsConfig {
            ca_file: options.ca_file.0.clone(),
            ..TlsConfig::default()
        },
    });
    Ok(Some(SingleSignOnConfig {
        provider: Arc::new(Provider(client.map_err(|error| format!("api.oidc.{error}"))?)),
        label: options.label.clone(),
        is_https: external_url.starts_with("https:"),
        roles: config.oidc.roles.clone(),
    }))
}

impl IdentityProvider for Provider {
    fn login_address<'a>(&'a self, login: &'a StartedLogin) -> ProviderAnswer<'a, String> {
        let secrets = LoginSecrets {
            state: &login.state,
            nonce: &login.nonce,
            code_challenge: &login.code_challenge,
        };
        Box::pin(async move { self.0.authorization_url(secrets).await.map_err(failure) })
    }

    fn user<'a>(&'a self, answer: ProviderCode<'a>) -> ProviderAnswer<'a, ProviderIdentity> {
        let code = AuthorizationCode {
            code: answer.code,
            issuer: answer.issuer,
            nonce: answer.nonce,
            code_verifier: answer.code_verifier,
        };
        Box::pin(async move {
            let identity = self.0.identity(code).await.map_err(failure)?;
            Ok(ProviderIdentity {
                subject: identity.subject,
                user_name: identity.user_name,
                roles: identity.roles,
            })
        })
    }
}

fn failure(error: OidcError) -> ProviderFailure {
    match error {
        OidcError::Unavailable(reason) => ProviderFailure::Unavailable(reason),
        OidcError::Refused(reason) => ProviderFailure::Refused(reason),
        OidcError::Invalid(reason) => ProviderFailure::Invalid(reason),
    }
}
