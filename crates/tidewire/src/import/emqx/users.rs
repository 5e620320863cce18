//! Authentication of EMQX: the order of its authenticators, and the users of the built-in database. Their password
//! hashes stay as they are if the password file supports them.
//!
//! EMQX asks its authenticators in order. Behind one that is not imported and that could reject a client, no other is
//! imported: it could admit this client.

use auth::{Password, PasswordHash};
use base64ct::{Base64, Base64Unpadded, Encoding};

use super::providers::Providers;
use super::scram;
use super::term::{Record, Table, Term};
use super::unreadable::Unreadable;
use crate::import::report::{Outcome, Report};
use crate::import::settings::Setting;
use crate::import::setup::Setup;
use crate::journal_command::summary::count;

const DATABASE: &str = "mnesia/emqx_authn_mnesia";
/// Item of the report.
const ITEM: &str = "authentication";
const USERS_MISSING: &str =
    "EMQX asks its built-in database first, which knows users that are not imported, and could reject them";
const HOW_TO_OPEN: &str =
    "to admit every client, set access.anonymous to \"always\" and access.unknown_users to \"anonymous\"";

/// Authentication of all listeners.
pub struct Authentication<'a> {
    pub authenticators: Setting<'a>,
    /// A listener authenticates its clients in a way of its own.
    pub is_by_listener: bool,
}

/// The tables with users.
#[derive(Default)]
pub struct UserTables<'t> {
    pub passwords: Option<&'t Table>,
    pub scram: Option<&'t Table>,
}

/// Why authenticators are left out: EMQX asks another one before them that is not imported, and that could reject
/// clients.
#[derive(Default)]
struct Closed {
    users: Option<String>,
    providers: Option<String>,
}

/// Why users with SCRAM are left out: EMQX would not admit them with a password.
const OTHER_AUTHENTICATORS: &str = "there are other authenticators, and its users could log in with their password \
                                    without them; add the users with tidewire passwd --scram";

impl Closed {
    fn all(&mut self, because: String) {
        self.users.get_or_insert_with(|| because.clone());
        self.providers.get_or_insert(because);
    }
}

impl<'a> Authentication<'a> {
    pub fn import(&self, tables: &UserTables<'_>, providers: &mut Providers<'a>, setup: &mut Setup, report: &Report) {
        let mut order: Vec<&'static str> = Vec::new();
        let mut closed = Closed::default();
        let (mut is_required, mut has_built_in, mut has_scram) = (false, false, false);
        let enabled = self.authenticators.items();
        let enabled = enabled.iter().filter(|one| is_enabled(one) != Ok(false));
        let other = (enabled.count() > 1).then_some(OTHER_AUTHENTICATORS);
        for authenticator in self.authenticators.items() {
            match is_enabled(&authenticator) {
                Ok(false) => {
                    authenticator.refuse("the authenticator is disabled");
                    continue;
                }
                Ok(true) => is_required = true,
                Err(because) => {
                    is_required = true;
                    authenticator.refuse_all(&because);
                    closed.all(first_authenticator("that cannot be read"));
                    continue;
                }
            }
            let kind = [authenticator.get("mechanism"), authenticator.get("backend")];
            match kind.each_ref().map(|part| part.text().unwrap_or_default()) {
                ["password_based", "built_in_database"] if !has_built_in => {
                    has_built_in = true;
                    let precondition = authenticator.get("precondition");
                    if precondition.exists() && !precondition.is("") {
                        closed.all("the authenticator has a precondition".to_owned());
                    }
                    match built_in(&authenticator, tables.passwords, closed.users.as_deref(), setup, report) {
                        Imported::All => order.push("users"),
                        Imported::Part => {
                            order.push("users");
                            closed.all(USERS_MISSING.to_owned());
                        }
                        Imported::Nothing => closed.all(USERS_MISSING.to_owned()),
                    }
                }
                ["scram", "built_in_database"] if !has_scram => {
                    has_scram = true;
                    scram::import(&authenticator, tables.scram, other, setup, report);
                }
                [mechanism, backend] => {
                    let kind = [mechanism, backend].join(" ");
                    let kind = kind.trim_end();
                    let added = match &closed.providers {
                        Some(because) => Err(format!("{because}; to ask it, add it to access.providers")),
                        None => providers.add(&authenticator, setup),
                    };
                    match added {
                        Ok(provider) => order.push(provider),
                        Err(because) => {
                            authenticator.refuse_all(&because);
                            match mechanism {
                                // It ignores clients with a password.
                                "scram" => {}
                                // It ignores clients whose password is no token. A service could admit a token.
                                "jwt" => {
                                    closed.providers.get_or_insert_with(|| first_authenticator(kind));
                                }
                                _ => closed.all(first_authenticator(kind)),
                            }
                        }
                    }
                }
            }
        }
        if setup.has("access.scram") && !order.contains(&"users") {
            order.push("users");
        }
        if !order.is_empty() && order != ["users"] {
            let words: Vec<toml::Value> = order.into_iter().map(Into::into).collect();
            setup.set("access.providers", ITEM, words);
        }
        self.admission(is_required, setup, report);
        for (is_used, table, path) in [
            (has_built_in, tables.passwords, DATABASE),
            (has_scram, tables.scram, scram::DATABASE),
        ] {
            let unused = table.filter(|table| !is_used && table.len() > 0);
            if let Some(table) = unused {
                let because = "no enabled authenticator uses the built-in database".to_owned();
                report.add(path, 0, &count(table.len(), "user"), Outcome::NotSupported { because });
            }
        }
    }

    /// Sets which clients may connect without authentication.
    fn admission(&self, is_required: bool, setup: &mut Setup, report: &Report) {
        let closed_by = if self.is_by_listener {
            Some("listeners have authenticators of their own, and others admit every client")
        } else if !self.authenticators.exists() {
            Some("the archive contains no authentication, but etc/emqx.conf of EMQX can contain it")
        } else {
            None
        };
        match (is_required, closed_by) {
            (true, _) => setup.set("access.anonymous", ITEM, "never"),
            (false, Some(because)) => self.close(because, setup, report),
            (false, None) => self.open(setup, report),
        }
    }

    /// EMQX without an authenticator admits every client.
    fn open(&self, setup: &mut Setup, report: &Report) {
        setup.set("access.anonymous", ITEM, "always");
        setup.set("access.unknown_users", ITEM, "anonymous");
        self.note(
            "EMQX without an authenticator admits every client; tidewire does as well",
            report,
        );
    }

    /// It is not known which clients EMQX admits.
    fn close(&self, because: &str, setup: &mut Setup, report: &Report) {
        setup.set("access.anonymous", ITEM, "never");
        self.note(&format!("never, because {because}; {HOW_TO_OPEN}"), report);
    }

    fn note(&self, because: &str, report: &Report) {
        let outcome = Outcome::Changed {
            to: "access.anonymous".to_owned(),
            because: because.to_owned(),
        };
        self.authenticators.note_all(&outcome);
        report.add(super::CONFIG, 0, ITEM, outcome);
    }
}

fn first_authenticator(kind: &str) -> String {
    format!("EMQX asks the authenticator {kind} first, which could reject clients")
}

/// An authenticator that cannot be read counts as an error: EMQX may admit no client without it.
pub fn is_enabled(authenticator: &Setting<'_>) -> Result<bool, String> {
    match authenticator.is_object() {
        true => authenticator.get("enable").flag(true),
        false => Err("it is not an authenticator".to_owned()),
    }
}

/// How many users of the built-in database are imported.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Imported {
    All,
    Part,
    Nothing,
}

fn built_in(
    authenticator: &Setting<'_>,
    table: Option<&Table>,
    closed_by: Option<&str>,
    setup: &mut Setup,
    report: &Report,
) -> Imported {
    match (table, closed_by) {
        (Some(table), Some(because)) => {
            let because = format!("{because}; add the users with tidewire passwd");
            authenticator.refuse(&because);
            report.add(
                DATABASE,
                0,
                &count(table.len(), "user"),
                Outcome::NotSupported { because },
            );
            Imported::Nothing
        }
        (Some(table), None) => match users(authenticator, table, setup, report) {
            true => Imported::All,
            false => Imported::Part,
        },
        (None, _) => {
            authenticator.refuse("the archive does not contain its users, or they cannot be read");
            Imported::Nothing
        }
    }
}

/// Returns whether all users are imported, except those of listeners.
fn users(authenticator: &Setting<'_>, table: &Table, setup: &mut Setup, report: &Report) -> bool {
    let is_by_client_id = authenticator.get("user_id_type").is("clientid");
    let algorithm = authenticator.get("password_hash_algorithm");
    let scheme = Scheme::of(&algorithm);
    let (mut imported, mut of_listeners) = (0, 0);
    let mut unreadable = Unreadable::default();
    for record in table.records() {
        let (group, name) = match record.get("user_id").map(Term::tuple) {
            Some([group, name]) => (group.name().unwrap_or_default(), name.text()),
            _ => ("", None),
        };
        let Some(name) = name else {
            unreadable.add("the name is missing or not UTF-8".to_owned());
            continue;
        };
        let result = if group != super::ALL_LISTENERS {
            of_listeners += 1;
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
    unreadable.report(DATABASE, "user", report);
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
    imported + of_listeners == table.len()
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

    fn of_passwords(table: &Table) -> UserTables<'_> {
        UserTables {
            passwords: Some(table),
            scram: None,
        }
    }

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
        let authentication = Authentication {
            authenticators: root.get("authentication"),
            is_by_listener: false,
        };
        authentication.import(&of_passwords(&table), &mut Providers::new(5), &mut setup, &report);
        root.finish();
        (setup, report.text("title"))
    }

    #[test]
    fn records_without_a_name_are_counted() {
        let users = [
            tuple(&[atom("mqtt:global"), Term::Integer(1)]),
            Term::Integer(2),
            atom("x"),
        ];
        let records: Vec<Vec<Term>> = users
            .into_iter()
            .map(|user| vec![user, bytes("hash"), bytes("salt"), atom("false")])
            .collect();
        let fields = ["user_id", "password_hash", "salt", "is_superuser"];
        let file = table_file("emqx_authn_mnesia", &fields, &records);
        let table = Table::read("emqx_authn_mnesia", &file, &mut TermBudget::default()).expect("valid");
        let text = "authentication = [{mechanism = password_based, backend = built_in_database}]";
        let hocon = Hocon::parse("cluster.hocon", text, &|_| Err(String::new())).expect("valid");
        let (mut setup, report) = (Setup::new().expect("random bytes"), Report::default());
        let authentication = Authentication {
            authenticators: Setting::root(&hocon, &report).get("authentication"),
            is_by_listener: false,
        };
        authentication.import(&of_passwords(&table), &mut Providers::new(5), &mut setup, &report);
        let text = report.text("title");
        let row = text
            .lines()
            .find(|row| row.contains("3 unreadable users"))
            .unwrap_or_default();
        assert!(row.contains("because the name is missing or not UTF-8"), "{text}");
    }

    /// Imports the authentication of a configuration. The database has the user `alice` with the password `secret`.
    fn import_config(config: &str, is_by_listener: bool) -> (Setup, String) {
        let hocon = Hocon::parse("cluster.hocon", config, &|_| Err(String::new())).expect("valid");
        let fields = ["user_id", "password_hash", "salt", "is_superuser"];
        let alice = tuple(&[atom("mqtt:global"), bytes("alice")]);
        let file = table_file(
            "emqx_authn_mnesia",
            &fields,
            &[vec![alice, bytes("secret"), bytes(""), atom("false")]],
        );
        let table = Table::read("emqx_authn_mnesia", &file, &mut TermBudget::default()).expect("valid");
        let (mut setup, report) = (Setup::new().expect("random bytes"), Report::default());
        let root = Setting::root(&hocon, &report);
        let authentication = Authentication {
            authenticators: root.get("authentication"),
            is_by_listener,
        };
        authentication.import(&of_passwords(&table), &mut Providers::new(5), &mut setup, &report);
        root.finish();
        (setup, report.text("title"))
    }

    #[test]
    fn only_an_explicit_choice_admits_every_client() {
        for (config, is_by_listener, part) in [
            ("", false, "etc/emqx.conf of EMQX can contain it"),
            ("", true, "listeners have authenticators of their own"),
            (
                "authentication = []",
                true,
                "listeners have authenticators of their own",
            ),
            ("authentication = null", false, "it is not an authenticator"),
            ("authentication = [x]", false, "it is not an authenticator"),
            (
                "authentication = [{enable = maybe, mechanism = jwt}]",
                false,
                "neither true nor false",
            ),
            (
                "authentication = [{mechanism = jwt}]",
                false,
                "its algorithm is missing",
            ),
        ] {
            let (setup, report) = import_config(config, is_by_listener);
            // Only an import that admits every client sets it.
            assert!(!setup.has("access.unknown_users"), "{config}\n{report}");
            assert!(
                setup.has("access.anonymous") && report.contains(part),
                "{config}\n{report}"
            );
        }
        for config in [
            "authentication = []",
            "authentication = [{enable = false, mechanism = jwt}]",
        ] {
            let (setup, report) = import_config(config, false);
            assert!(setup.has("access.unknown_users"), "{config}\n{report}");
            assert!(
                report.contains("EMQX without an authenticator admits every client"),
                "{report}"
            );
        }
    }

    #[test]
    fn users_behind_an_authenticator_that_could_deny_them_are_left_out() {
        let built_in = |more: &str| {
            format!(
                "{{mechanism = password_based, backend = built_in_database, \
                 password_hash_algorithm {{name = plain}}{more}}}"
            )
        };
        let http = "{mechanism = password_based, backend = http}";
        for (authenticators, is_imported) in [
            (built_in(""), true),
            (format!("{{mechanism = jwt}}, {}", built_in("")), true),
            (format!("{}, {http}", built_in("")), true),
            (built_in(", precondition = \"\""), true),
            (format!("{http}, {}", built_in("")), false),
            (format!("{{enable = maybe}}, {}", built_in("")), false),
            (format!("{{mechanism = other}}, {}", built_in("")), false),
            (built_in(", precondition = \"listener == 'tcp:a'\""), false),
        ] {
            let (setup, report) = import_config(&format!("authentication = [{authenticators}]"), false);
            let is_user = setup.verifies("alice", &Password::new(b"secret".to_vec()));
            assert_eq!(is_user, is_imported, "{authenticators}\n{report}");
            assert_eq!(
                report.contains("add the users with tidewire passwd"),
                !is_imported,
                "{report}"
            );
        }
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
