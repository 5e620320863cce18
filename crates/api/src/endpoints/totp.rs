//! The second factor of console users (TOTP): set-up, recovery codes, and its end. `web::admins` stores it, and
//! `login.rs` asks for codes.

use std::sync::Arc;
use std::time::{Instant, SystemTime};

use auth::TotpSecret;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::{Extension, Json};
use qrcode::{Color, EcLevel, QrCode};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tracing::{error, info};
use web::admins::{Admins, AdminsError, RecoveryCode, SetUpError};
use web::body;
use web::guard::{AuthenticatedUser, PeerAddress, RequiredAccess};
use web::logins::Logins;
use web::problem::HttpProblem;

use super::console_users::users_state;
use super::login::{PasswordCheck, PasswordInput};
use crate::app::Endpoint;
use crate::config::NodeInfo;

const BODY_MAX: usize = 4 * 1024;
/// The name of the server in the authenticator app.
const ISSUER: &str = "tidewire";
/// Light border of a QR code, in modules. The standard requires it.
const QR_BORDER: usize = 4;

/// The second factor of the user of a request.
#[derive(Serialize, JsonSchema)]
pub struct OwnTotp {
    /// Logins need a code.
    pub is_active: bool,
    /// Number of unused recovery codes.
    pub recovery_codes_left: usize,
    /// The server requires a second factor of all console users (`api.require_totp`).
    pub is_required: bool,
    /// The user can have a second factor here: not an API key, and not a user of the identity provider.
    pub is_available: bool,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TotpStart {
    password: PasswordInput,
}

/// A new secret for an authenticator app. It is shown only in this answer.
#[derive(Serialize, JsonSchema)]
pub struct TotpSetUp {
    /// Base32 text, to enter by hand.
    pub secret: String,
    /// The secret as an `otpauth://` URI, which is the content of the QR code.
    pub uri: String,
    pub qr_code: QrDrawing,
}

/// A QR code as a drawing.
#[derive(Serialize, JsonSchema)]
pub struct QrDrawing {
    /// Width and height with the border, in modules.
    pub size: usize,
    /// The dark modules as the path of an SVG with the view box `0 0 SIZE SIZE`.
    pub path: String,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TotpConfirmation {
    /// Code of the authenticator app.
    #[schemars(extend("writeOnly" = true))]
    code: PasswordInput,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TotpProof {
    password: PasswordInput,
    /// Code of the authenticator app, or a recovery code.
    #[schemars(extend("writeOnly" = true))]
    code: PasswordInput,
}

/// New recovery codes. Each replaces a code of the app once. They are shown only in this answer.
#[derive(Serialize, JsonSchema)]
pub struct RecoveryCodes {
    pub recovery_codes: Vec<String>,
}

pub fn endpoints() -> Vec<Endpoint> {
    const OWN: &str = "/api/v1/totp";
    vec![
        Endpoint::get(OWN, "own_totp", RequiredAccess::SetUp, own)
            .tag("Login")
            .describe("Your second factor", "Whether your logins need a code of an authenticator app (TOTP).")
            .returns::<OwnTotp>("The second factor."),
        Endpoint::post(OWN, "begin_totp", RequiredAccess::SetUp, begin)
            .tag("Login")
            .describe(
                "Begin to set up a second factor",
                "Returns a secret for an authenticator app. It takes effect when its first code is confirmed within 15 minutes.",
            )
            .takes::<TotpStart>(BODY_MAX)
            .fails(StatusCode::CONFLICT)
            .fails(StatusCode::UNPROCESSABLE_ENTITY)
            .fails(StatusCode::TOO_MANY_REQUESTS)
            .returns::<TotpSetUp>("The secret."),
        Endpoint::post("/api/v1/totp/confirm", "confirm_totp", RequiredAccess::SetUp, confirm)
            .tag("Login")
            .describe(
                "Turn on your second factor",
                "With the first code of the authenticator app. Returns the recovery codes. All other logins of the user end.",
            )
            .takes::<TotpConfirmation>(BODY_MAX)
            .fails(StatusCode::CONFLICT)
            .fails(StatusCode::UNPROCESSABLE_ENTITY)
            .returns::<RecoveryCodes>("Turned on."),
        Endpoint::post("/api/v1/totp/recovery-codes", "renew_recovery_codes", RequiredAccess::SetUp, renew)
            .tag("Login")
            .describe("Create new recovery codes", "The old ones stop working. Limited like logins.")
            .takes::<TotpProof>(BODY_MAX)
            .fails(StatusCode::CONFLICT)
            .fails(StatusCode::UNPROCESSABLE_ENTITY)
            .fails(StatusCode::TOO_MANY_REQUESTS)
            .returns::<RecoveryCodes>("Created."),
        Endpoint::post("/api/v1/totp/turn-off", "turn_off_totp", RequiredAccess::SetUp, turn_off)
            .tag("Login")
            .describe("Turn off your second factor", "The password is then sufficient. Limited like logins.")
            .takes::<TotpProof>(BODY_MAX)
            .fails(StatusCode::CONFLICT)
            .fails(StatusCode::UNPROCESSABLE_ENTITY)
            .fails(StatusCode::TOO_MANY_REQUESTS)
            .returns_nothing("Turned off."),
        Endpoint::delete(
            "/api/v1/console-users/{name}/totp",
            "remove_console_totp",
            RequiredAccess::Admin,
            remove,
        )
        .tag("Login")
        .describe(
            "Remove the second factor of a console user",
            "For a user without the device and the recovery codes. All logins of the user end. For your own user, use \
             `POST /api/v1/totp/turn-off`.",
        )
        .path_parameter("name", "Percent-encoded.")
        .fails(StatusCode::NOT_FOUND)
        .fails(StatusCode::CONFLICT)
        .returns_nothing("Removed.")
        .changes(users_state),
    ]
}

async fn own(State(admins): State<Arc<Admins>>, Extension(login): Extension<AuthenticatedUser>) -> Json<OwnTotp> {
    Json(OwnTotp {
        is_active: admins.has_totp(&login.user),
        recovery_codes_left: admins.recovery_codes_left(&login.user),
        is_required: admins.is_totp_required(),
        is_available: admins.role(&login.user).is_some(),
    })
}

async fn begin(
    State(passwords): State<PasswordCheck>,
    State(node): State<Arc<NodeInfo>>,
    Extension(peer): Extension<PeerAddress>,
    Extension(login): Extension<AuthenticatedUser>,
    body::Json(start): body::Json<TotpStart>,
) -> Result<Json<TotpSetUp>, HttpProblem> {
    let admins = &passwords.admins;
    only_console_users(admins, &login)?;
    if admins.has_totp(&login.user) {
        return Err(set_up_problem(SetUpError::Active));
    }
    passwords.require(peer, &login.user, &start.password).await?;
    let secret = admins.begin_totp(&login.user, Instant::now()).map_err(set_up_problem)?;
    let uri = app_uri(&secret, &login.user, &node.name);
    let qr_code = draw(&uri).ok_or_else(|| HttpProblem::internal("the name of the user is too long for a QR code"))?;
    Ok(Json(TotpSetUp {
        secret: secret.to_base32().to_string(),
        uri,
        qr_code,
    }))
}

async fn confirm(
    State(admins): State<Arc<Admins>>,
    State(logins): State<Arc<Logins>>,
    Extension(peer): Extension<PeerAddress>,
    Extension(login): Extension<AuthenticatedUser>,
    body::Json(confirmation): body::Json<TotpConfirmation>,
) -> Result<Json<RecoveryCodes>, HttpProblem> {
    only_console_users(&admins, &login)?;
    let user = login.user.clone();
    let codes = web::block(move || {
        let code = |code: &str| admins.confirm_totp(&user, code, Instant::now(), SystemTime::now());
        confirmation.code.read(code)
    });
    let codes = codes.await?.map_err(set_up_problem)?;
    logins.revoke_others(&login.user, login.login_id.as_deref());
    info!(user = %login.user, address = %peer.0, "second factor turned on");
    Ok(shown(&codes))
}

async fn renew(
    State(passwords): State<PasswordCheck>,
    Extension(peer): Extension<PeerAddress>,
    Extension(login): Extension<AuthenticatedUser>,
    body::Json(proof): body::Json<TotpProof>,
) -> Result<Json<RecoveryCodes>, HttpProblem> {
    check_proof(&passwords, peer, &login, proof).await?;
    let (admins, user) = (passwords.admins.clone(), login.user.clone());
    let codes = web::block(move || admins.renew_recovery_codes(&user)).await?;
    let codes = codes.map_err(|error| not_written(&error))?;
    info!(user = %login.user, address = %peer.0, "recovery codes renewed");
    Ok(shown(&codes))
}

async fn turn_off(
    State(passwords): State<PasswordCheck>,
    Extension(peer): Extension<PeerAddress>,
    Extension(login): Extension<AuthenticatedUser>,
    body::Json(proof): body::Json<TotpProof>,
) -> Result<StatusCode, HttpProblem> {
    check_proof(&passwords, peer, &login, proof).await?;
    let (admins, user) = (passwords.admins.clone(), login.user.clone());
    let removed = web::block(move || admins.remove_totp(&user)).await?;
    removed.map_err(|error| not_written(&error))?;
    info!(user = %login.user, address = %peer.0, "second factor turned off");
    Ok(StatusCode::NO_CONTENT)
}

async fn remove(
    State(admins): State<Arc<Admins>>,
    State(logins): State<Arc<Logins>>,
    Extension(login): Extension<AuthenticatedUser>,
    Path(name): Path<String>,
) -> Result<StatusCode, HttpProblem> {
    if *name == *login.user {
        let detail = "turn off your own second factor with your password and a code: POST /api/v1/totp/turn-off";
        return Err(HttpProblem::conflict("own-totp", "Your own second factor", detail));
    }
    if admins.role(&name).is_none() {
        return Err(HttpProblem::not_found("no such user"));
    }
    let user = name.clone();
    let removed = web::block(move || admins.remove_totp(&user)).await?;
    if !removed.map_err(|error| not_written(&error))? {
        return Err(HttpProblem::not_found("the user has no second factor"));
    }
    logins.revoke_user(&name);
    info!(user = %name, "second factor of a console user removed");
    Ok(StatusCode::NO_CONTENT)
}

fn only_console_users(admins: &Admins, login: &AuthenticatedUser) -> Result<(), HttpProblem> {
    match admins.role(&login.user) {
        Some(_) => Ok(()),
        None => Err(HttpProblem::forbidden(
            "only users of the console can have a second factor, not API keys and users of the identity provider",
        )),
    }
}

/// Checks the password and a code of a user with a second factor.
async fn check_proof(
    passwords: &PasswordCheck,
    peer: PeerAddress,
    login: &AuthenticatedUser,
    proof: TotpProof,
) -> Result<(), HttpProblem> {
    only_console_users(&passwords.admins, login)?;
    if !passwords.admins.has_totp(&login.user) {
        let detail = "this user has no second factor";
        return Err(HttpProblem::conflict("totp-inactive", "No second factor", detail));
    }
    passwords.require(peer, &login.user, &proof.password).await?;
    let accepted = passwords.verify_code(peer, &login.user, proof.code).await?;
    match accepted {
        Some(_) => Ok(()),
        // Not 401, which would mean that the login has ended.
        None => Err(wrong_code()),
    }
}

fn wrong_code() -> HttpProblem {
    HttpProblem::invalid("code", HttpProblem::wrong_totp_code().detail)
}

fn set_up_problem(error: SetUpError) -> HttpProblem {
    match error {
        SetUpError::Active => {
            let detail = "this user has a second factor; turn it off before you set up another one";
            HttpProblem::conflict("totp-active", "Second factor is active", detail)
        }
        SetUpError::NotBegun => {
            let detail = "the set-up has expired; begin again";
            HttpProblem::conflict("totp-not-begun", "No set-up in progress", detail)
        }
        SetUpError::WrongCode => {
            HttpProblem::invalid("code", "wrong code; check the clocks of the server and of the device")
        }
        SetUpError::Admins(error) => not_written(&error),
    }
}

pub(super) fn not_written(error: &AdminsError) -> HttpProblem {
    error!(%error, "writing a change of a second factor failed");
    HttpProblem::internal("cannot write the change to disk")
}

fn shown(codes: &[RecoveryCode]) -> Json<RecoveryCodes> {
    Json(RecoveryCodes {
        recovery_codes: codes.iter().map(|code| code.expose().to_owned()).collect(),
    })
}

/// Returns the secret in the format of authenticator apps, which show the account `USER@NODE`.
fn app_uri(secret: &TotpSecret, user: &str, node: &str) -> String {
    let account = percent_encoded(&format!("{user}@{node}"));
    format!(
        "otpauth://totp/{ISSUER}:{account}?secret={}&issuer={ISSUER}",
        &*secret.to_base32()
    )
}

fn percent_encoded(text: &str) -> String {
    let mut encoded = String::new();
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => encoded.push(char::from(byte)),
            _ => encoded.push_str(&format!("%{byte:02X}")),
        }
    }
    encoded
}

/// `None`: the text is too long.
fn draw(text: &str) -> Option<QrDrawing> {
    let code = QrCode::with_error_correction_level(text, EcLevel::M)
        .or_else(|_| QrCode::with_error_correction_level(text, EcLevel::L))
        .ok()?;
    let width = code.width();
    let mut path = String::new();
    for (index, color) in code.to_colors().into_iter().enumerate() {
        if color == Color::Dark {
            let (x, y) = (index % width + QR_BORDER, index / width + QR_BORDER);
            path.push_str(&format!("M{x} {y}h1v1h-1z"));
        }
    }
    Some(QrDrawing {
        size: width + 2 * QR_BORDER,
        path,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uri_names_issuer_user_and_node() {
        let secret = TotpSecret::of_base32("GEZDGNBVGY3TQOJQGEZDGNBVGY3TQOJQ").unwrap();
        assert_eq!(
            app_uri(&secret, "ada l", "plant/7"),
            "otpauth://totp/tidewire:ada%20l%40plant%2F7?secret=GEZDGNBVGY3TQOJQGEZDGNBVGY3TQOJQ&issuer=tidewire"
        );
    }

    #[test]
    fn drawing_has_a_border_and_finder_patterns() {
        let drawing = draw("otpauth://totp/tidewire:admin").unwrap();
        assert_eq!(drawing.size, 29 + 2 * QR_BORDER);
        assert!(drawing.path.starts_with("M4 4h1v1h-1zM5 4h1v1h-1z"), "{}", drawing.path);
        assert!(!drawing.path.contains("M3 ") && !drawing.path.contains(" 3h"));
        assert!(draw(&"x".repeat(3000)).is_none());
    }
}
