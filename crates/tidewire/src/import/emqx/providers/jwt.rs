//! JSON Web Tokens: shared secret, public key, or key set.

use auth::TemplateUse;
use auth_providers::jwt::{VerificationKey, key_of_pem};
use base64ct::{Base64, Encoding};
use toml::{Table, Value};

use super::super::draft::Draft;
use super::super::pem::pem;
use crate::import::report::Outcome;
use crate::import::settings::Setting;

/// Range of `refresh_interval` in seconds.
const REFRESH_S: (u64, u64) = (10, 86_400);
/// Header that EMQX sends if none is configured.
const ACCEPT: &str = "accept";

/// The provider, and two of its settings that concern other parts of the import.
pub struct JwtImport<'a> {
    pub draft: Draft<'a>,
    /// The user name of CONNECT is the token.
    pub is_user_name: bool,
    /// A client without a token is rejected, also if another provider follows.
    pub denies_missing: bool,
}

/// `denies_missing` is the default of this version of EMQX.
pub fn convert<'a>(from: &Setting<'a>, denies_missing: bool) -> Result<JwtImport<'a>, String> {
    let mut draft = Draft::new("access.jwt", from, TemplateUse::Login);
    key(&mut draft)?;
    let is_user_name = match draft.optional("from")? {
        None | Some("password") => {
            draft.put(&from.get("from"), "from", "password");
            false
        }
        Some("username") => {
            draft.set("from", "username");
            from.get("from").changed(
                "access.jwt.from",
                "the user name of the session is the claim sub; in EMQX, it is the token. Tokens without sub are rejected",
            );
            true
        }
        Some(_) => return Err("its from is neither password nor username".to_owned()),
    };
    let on_missing = from.get("on_missing_jwt");
    let denies_missing = match draft.optional("on_missing_jwt")? {
        None => denies_missing,
        Some("ignore") => false,
        Some("deny") => true,
        Some(_) => return Err("its on_missing_jwt is neither deny nor ignore".to_owned()),
    };
    on_missing.imported("access.providers");
    claims(&mut draft)?;
    draft.text("acl_claim_name", "acl_claim_name")?;
    let disconnect = from.get("disconnect_after_expire");
    if disconnect.flag(true)? {
        draft.used(&disconnect, "disconnect_after_expire");
    } else {
        disconnect.note_all(&Outcome::Changed {
            to: "access.jwt.disconnect_after_expire".to_owned(),
            because: "true, because EMQX denies all topics to a client whose token has expired".to_owned(),
        });
    }
    draft.set("disconnect_after_expire", true);
    draft.set("leeway", "0s");
    draft.set("require_expiry", false);
    from.get("require_expiry").note_missing(Outcome::Changed {
        to: "access.jwt.require_expiry".to_owned(),
        because: "false, because EMQX accepts tokens without exp; set it to true if all tokens have it".to_owned(),
    });
    Ok(JwtImport {
        draft,
        is_user_name,
        denies_missing,
    })
}

fn key(draft: &mut Draft<'_>) -> Result<(), String> {
    let from = draft.from.clone();
    let use_jwks = from.get("use_jwks");
    if use_jwks.flag(false)? {
        use_jwks.imported("access.jwt.jwks_url");
        return key_set(draft);
    }
    use_jwks.imported("access.jwt");
    match draft.required("algorithm")? {
        "hmac-based" => {
            let is_base64 = from.get("secret_base64_encoded").flag(false)?;
            let secret = draft.required("secret")?;
            let bytes = match is_base64 {
                true => Base64::decode_vec(secret.trim()).map_err(|_| "its secret is not Base64 text")?,
                false => secret.as_bytes().to_vec(),
            };
            VerificationKey::secret(&bytes).map_err(|error| format!("secret: {error}"))?;
            draft.secret("secret", "secret")?;
            draft.put(&from.get("secret_base64_encoded"), "secret_base64_encoded", is_base64);
        }
        "public-key" => {
            let contents = pem(draft.required("public_key")?).map_err(|problem| format!("public_key: {problem}"))?;
            key_of_pem(&contents).map_err(|error| format!("public_key: {error}"))?;
            draft.file("public_key_file", "tls/access-jwt-public_key_file.pem", contents);
            draft.used(&from.get("public_key"), "public_key_file");
        }
        _ => return Err("its algorithm is neither hmac-based nor public-key".to_owned()),
    }
    from.get("algorithm").imported("access.jwt");
    Ok(())
}

fn key_set(draft: &mut Draft<'_>) -> Result<(), String> {
    let from = draft.from.clone();
    let url = draft.required("endpoint")?;
    draft.put(&from.get("endpoint"), "jwks_url", url);
    // The answer could depend on them.
    if let Some((name, _)) = from
        .get("headers")
        .entries()
        .iter()
        .find(|(name, _)| !name.eq_ignore_ascii_case(ACCEPT))
    {
        return Err(format!("tidewire sends no header {name} for the key set"));
    }
    from.get("headers").imported("as in tidewire");
    let refresh = from.get("refresh_interval");
    if refresh.exists() {
        let seconds = refresh
            .number()
            .ok_or("its refresh_interval is not a number of seconds")?;
        let possible = seconds.clamp(REFRESH_S.0, REFRESH_S.1);
        draft.set("refresh_interval", format!("{possible}s"));
        match possible == seconds {
            true => draft.used(&refresh, "refresh_interval"),
            false => refresh.changed(
                "access.jwt.refresh_interval",
                &format!("{possible}s, the nearest possible value"),
            ),
        }
    }
    for key in ["pool_size", "max_fail_count"] {
        from.get(key)
            .refuse("tidewire requests the key set with one connection");
    }
    let ssl = from.get("ssl");
    let is_on = ssl.get("enable").flag(false)?;
    ssl.get("enable").imported("access.jwt.jwks_url");
    match is_on {
        true => authority(draft, &ssl)?,
        false => ssl.refuse("TLS is off"),
    }
    from.get("algorithm").imported("access.jwt");
    Ok(())
}

/// The certificate of the server of the key set is always verified.
fn authority(draft: &mut Draft<'_>, ssl: &Setting<'_>) -> Result<(), String> {
    if ssl.get("certfile").filled().is_some() {
        return Err("tidewire has no client certificate for the key set".to_owned());
    }
    if let Some(text) = ssl.get("cacertfile").filled() {
        let contents = pem(text).map_err(|problem| format!("ssl.cacertfile: {problem}"))?;
        draft.file("ca_file", "tls/access-jwt-ca_file.pem", contents);
        draft.used(&ssl.get("cacertfile"), "ca_file");
    }
    let verify = ssl.get("verify");
    match verify.is("verify_none") {
        true => verify.changed("access.jwt.ca_file", "the certificate of the server is always verified"),
        false => verify.imported("as in tidewire"),
    }
    ssl.refuse("tidewire chooses the settings of TLS itself");
    Ok(())
}

/// An object, or a list of objects with `name` and `value`.
fn claims(draft: &mut Draft<'_>) -> Result<(), String> {
    let setting = draft.from.get("verify_claims");
    if setting.is_object() || !setting.exists() {
        return draft.templates(&setting, "verify_claims").map(drop);
    }
    let mut table = Table::new();
    for item in setting.items() {
        let (name, value) = (item.get("name").filled(), item.get("value").text());
        let (Some(name), Some(value)) = (name, value) else {
            return Err("one of its verify_claims has no name or no value".to_owned());
        };
        draft.check_template(&format!("verify_claims.{name}"), value)?;
        if table.insert(name.to_owned(), Value::from(value)).is_some() {
            return Err(format!("its verify_claims contain {name} twice"));
        }
    }
    draft.put(&setting, "verify_claims", table);
    Ok(())
}
