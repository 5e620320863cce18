//! Authentication of EMQX: the users of the built-in database. Their password hashes stay as they are if the password
//! file supports them.

use auth::{Password, PasswordHash};
use base64ct::{Base64, Base64Unpadded, Encoding};

use super::term::{Record, Table, Term};
use crate::import::report::{Outcome, Report};
use crate::import::settings::Setting;
use crate::import::setup::Setup;
use crate::journal_command::summary::count;

const DATABASE: &str = "mnesia/emqx_authn_mnesia";
/// Users of the authentication that applies to all listeners.
const GLOBAL: &str = "mqtt:global";

pub fn import(authentication: &Setting<'_>, database: Option<&Table>, setup: &mut Setup, report: &Report) {
    let mut built_in = None;
    let mut is_required = false;
    for authenticator in authentication.items().iter().filter(|one| one.is_object()) {
        if !authenticator.get("enable").flag(true) {
            authenticator.refuse("the authenticator is disabled");
            continue;
        }
        is_required = true;
        let kind = [authenticator.get("mechanism"), authenticator.get("backend")];
        match kind.each_ref().map(|part| part.text().unwrap_or_default()) {
            ["password_based", "built_in_database"] if built_in.is_none() => built_in = Some(authenticator.clone()),
            [mechanism, backend] => {
                let kind = [mechanism, backend].join(" ");
                authenticator.refuse(&format!(
                    "tidewire does not authenticate clients with {}",
                    kind.trim_end()
                ));
            }
        }
    }
    anonymous(authentication, is_required, setup, report);
    match (&built_in, database) {
        (Some(authenticator), Some(table)) => users(authenticator, table, setup, report),
        (Some(authenticator), None) => {
            authenticator.refuse("the archive does not contain its users, or they cannot be read");
        }
        (None, Some(table)) if table.len() > 0 => {
            let because = "no enabled authenticator uses the built-in database".to_owned();
            report.add(
                DATABASE,
                0,
                &count(table.len(), "user"),
                Outcome::NotSupported { because },
            );
        }
        (None, _) => {}
    }
}

/// EMQX without an authenticator admits every client.
fn anonymous(authentication: &Setting<'_>, is_required: bool, setup: &mut Setup, report: &Report) {
    let item = "authentication";
    match is_required {
        true => setup.set("access.anonymous", item, "never"),
        false => {
            setup.set("access.anonymous", item, "always");
            setup.set("access.unknown_users", item, "anonymous");
            let outcome = Outcome::Changed {
                to: "access.anonymous".to_owned(),
                because: "EMQX without an authenticator admits every client; tidewire does as well".to_owned(),
            };
            authentication.note_all(&outcome);
            report.add(super::CONFIG, 0, "authentication", outcome);
        }
    }
}

fn users(authenticator: &Setting<'_>, table: &Table, setup: &mut Setup, report: &Report) {
    let is_by_client_id = authenticator.get("user_id_type").is("clientid");
    let algorithm = authenticator.get("password_hash_algorithm");
    let scheme = Scheme::of(&algorithm);
    let mut imported = 0;
    for record in table.records() {
        let (group, name) = match record.get("user_id").map(Term::tuple) {
            Some([group, name]) => (group.name().unwrap_or_default(), name.text()),
            _ => ("", None),
        };
        let Some(name) = name else {
            let because = "its name is not UTF-8".to_owned();
            report.add(DATABASE, 0, "a user", Outcome::NotSupported { because });
            continue;
        };
        let result = if group != GLOBAL {
            Err(format!(
                "it belongs to the listener {group}; tidewire has the same users on all listeners"
            ))
        } else if is_by_client_id {
            Err("it authenticates by client id; tidewire authenticates by user name".to_owned())
        } else {
            user(&record, name, &scheme, setup)
        };
        match result {
            Ok(()) => imported += 1,
            Err(because) => report.add(DATABASE, 0, &format!("user {name}"), Outcome::NotSupported { because }),
        }
    }
    if imported > 0 {
        report.add(
            DATABASE,
            0,
            &count(imported, "user"),
            Outcome::Imported("passwords".to_owned()),
        );
    }
    authenticator
        .get("bootstrap_file")
        .refuse("the users of the file are in the database already");
    authenticator
        .get("bootstrap_type")
        .refuse("the users of the file are in the database already");
    match &scheme {
        Ok(Scheme::Plain) => algorithm.changed("access.password_file", "clear text is hashed with Argon2id"),
        Ok(_) => algorithm.imported("access.password_file"),
        Err(because) => algorithm.refuse(because),
    }
    authenticator.imported("access.password_file");
}

fn user(record: &Record<'_>, name: &str, scheme: &Result<Scheme, String>, setup: &mut Setup) -> Result<(), String> {
    let scheme = scheme
        .as_ref()
        .map_err(|because| format!("{because}: set a new password with tidewire passwd"))?;
    let hash = record
        .get("password_hash")
        .and_then(Term::text)
        .ok_or("its password hash cannot be read")?;
    let salt = record
        .get("salt")
        .and_then(Term::text)
        .ok_or("its salt cannot be read")?;
    let hash = scheme.hash(hash, salt)?;
    let is_superuser = record.get("is_superuser").is_some_and(|flag| flag.is_atom("true"));
    setup.add_user(name, hash, is_superuser)
}

/// How EMQX has hashed the passwords.
enum Scheme {
    Plain,
    Sha256Prefix,
    Sha256Suffix,
    Sha512Suffix,
    Pbkdf2 { digest: &'static str, iterations: u64 },
}

impl Scheme {
    /// EMQX's defaults for missing fields.
    fn of(algorithm: &Setting<'_>) -> Result<Scheme, String> {
        let name = algorithm.get("name").text().unwrap_or("sha256");
        let position = algorithm.get("salt_position").text().unwrap_or("prefix");
        match (name, position) {
            ("plain", _) => Ok(Scheme::Plain),
            ("sha256", "prefix") => Ok(Scheme::Sha256Prefix),
            ("sha256", "suffix") => Ok(Scheme::Sha256Suffix),
            ("sha512", "suffix") => Ok(Scheme::Sha512Suffix),
            ("pbkdf2", _) => {
                let digest = match algorithm.get("mac_fun").text() {
                    Some("sha256") => "pbkdf2-sha256",
                    Some("sha512") => "pbkdf2-sha512",
                    other => {
                        let other = other.unwrap_or("without mac_fun");
                        return Err(format!(
                            "the password file does not support hashes of type pbkdf2 {other}"
                        ));
                    }
                };
                let iterations = algorithm.get("iterations").number();
                let iterations = iterations.ok_or("the number of iterations of pbkdf2 is missing")?;
                Ok(Scheme::Pbkdf2 { digest, iterations })
            }
            (name @ ("sha256" | "sha512" | "md5" | "sha"), position) => Err(format!(
                "the password file does not support hashes of type {name} with salt_position {position}"
            )),
            (name, _) => Err(format!("the password file does not support hashes of type {name}")),
        }
    }

    fn hash(&self, hash: &str, salt: &str) -> Result<PasswordHash, String> {
        let text = match self {
            Scheme::Plain => {
                let password = Password::new(hash.as_bytes().to_vec());
                return PasswordHash::create(&password).map_err(|error| error.to_string());
            }
            Scheme::Sha256Prefix => format!("$sha256${salt}${hash}"),
            Scheme::Sha256Suffix => format!("$sha256-suffix${salt}${hash}"),
            Scheme::Sha512Suffix => {
                let hash = hex(hash).ok_or("its password hash is not hexadecimal")?;
                format!(
                    "$6${}${}",
                    Base64::encode_string(salt.as_bytes()),
                    Base64::encode_string(&hash)
                )
            }
            Scheme::Pbkdf2 { digest, iterations } => {
                let hash = hex(hash).ok_or("its password hash is not hexadecimal")?;
                let salt = Base64Unpadded::encode_string(salt.as_bytes());
                format!(
                    "${digest}$i={iterations},l={}${salt}${}",
                    hash.len(),
                    Base64Unpadded::encode_string(&hash)
                )
            }
        };
        PasswordHash::parse(&text).map_err(|error| error.to_string())
    }
}

fn hex(text: &str) -> Option<Vec<u8>> {
    let (pairs, rest) = text.as_bytes().as_chunks::<2>();
    let digit = |byte: u8| char::from(byte).to_digit(16);
    let bytes: Option<Vec<u8>> = pairs
        .iter()
        .map(|&[high, low]| u8::try_from(digit(high)? * 16 + digit(low)?).ok())
        .collect();
    bytes.filter(|_| rest.is_empty())
}

#[cfg(test)]
mod tests {
    use auth::Password;

    use super::super::term::TermBudget;
    use super::super::term::tests::{atom, bytes, table_file, tuple};
    use super::*;
    use crate::import::hocon::Hocon;

    /// Imports one user with the algorithm. Returns the setup's users and the report.
    fn import_one(algorithm: &str, hash: &str, salt: &str) -> (Setup, String) {
        let text = format!(
            "authentication = [{{mechanism = password_based, backend = built_in_database, \
             password_hash_algorithm {{{algorithm}}}}}]"
        );
        let hocon = Hocon::parse("cluster.hocon", &text, &|_| Err(String::new())).expect("valid");
        let file = table_file(
            "emqx_authn_mnesia",
            &["user_id", "password_hash", "salt", "is_superuser"],
            &[vec![
                tuple(&[atom("mqtt:global"), bytes("alice")]),
                bytes(hash),
                bytes(salt),
                atom("true"),
            ]],
        );
        let table = Table::read("emqx_authn_mnesia", &file, &mut TermBudget::default()).expect("valid");
        let (mut setup, report) = (Setup::new().expect("random bytes"), Report::default());
        let root = Setting::root(&hocon, &report);
        import(&root.get("authentication"), Some(&table), &mut setup, &report);
        root.finish();
        (setup, report.text("title"))
    }

    /// Hashes of the password `secret`, made with Python's hashlib.
    const HASHES: [(&str, &str, &str); 5] = [
        ("name = plain, salt_position = disable", "secret", ""),
        (
            "name = sha256, salt_position = prefix",
            "7aa963eee05fa1722b603b8b0668dd7fa777e3ee2f12cfc447808cd2a9587529",
            "a1b2",
        ),
        (
            "name = sha256, salt_position = suffix",
            "a9cd520661e863487ab1022e4c2b9d97896a901681f05891b5e2cdfd0cea9b06",
            "a1b2",
        ),
        (
            "name = sha512, salt_position = suffix",
            "6fec3b13545cdaa391123b1d4c3596125f4c3c7ffef38d858ab7e31ed03e91ed\
             004a654d03a6309bbd27745fc52530cf55eb50eb877515b13e31a646fb3b1b8d",
            "a1b2",
        ),
        (
            "name = pbkdf2, mac_fun = sha256, iterations = 4096",
            "76519b8e3d2306ffb3af00e74428a6e0d38f64f4b04b32c4a9679e433a3c8d10",
            "a1b2",
        ),
    ];

    #[test]
    fn supported_hashes_still_verify() {
        for (algorithm, hash, salt) in HASHES {
            let (setup, report) = import_one(algorithm, hash, salt);
            assert!(
                setup.verifies("alice", &Password::new(b"secret".to_vec())),
                "{algorithm}\n{report}"
            );
            assert!(
                !setup.verifies("alice", &Password::new(b"other".to_vec())),
                "{algorithm}"
            );
            assert!(report.contains("0 not supported"), "{report}");
            assert!(
                !report.contains("secret") && (hash.len() < 10 || !report.contains(hash)),
                "{report}"
            );
        }
    }

    #[test]
    fn users_with_other_hashes_are_named() {
        for algorithm in [
            "name = bcrypt, salt_rounds = 10",
            "name = md5",
            "name = sha256, salt_position = disable",
        ] {
            let (setup, report) = import_one(algorithm, "$2b$10$abcdefghijk", "x");
            assert!(!setup.verifies("alice", &Password::new(b"secret".to_vec())));
            assert!(report.contains("user alice"), "{report}");
            assert!(report.contains("set a new password"), "{report}");
            assert!(!report.contains("$2b$"), "{report}");
        }
    }
}
