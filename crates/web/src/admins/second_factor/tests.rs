//! Tests of second factors: set-up, use of codes, and the file.

#![allow(clippy::unwrap_used)]

use std::time::UNIX_EPOCH;

use super::super::{FILE, FIRST_ADMIN};
use super::*;
use crate::role::Role;

/// A time in the middle of a period.
const NOON_S: u64 = 1_800_000_000;

struct TestAdmins {
    directory: PathBuf,
    admins: Admins,
}

impl TestAdmins {
    fn new(name: &str) -> TestAdmins {
        let directory = std::env::temp_dir().join(format!("tidewire-totp-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&directory);
        let (admins, _) = Admins::open_or_create(&directory).unwrap();
        TestAdmins { directory, admins }
    }

    fn file(&self) -> PathBuf {
        self.directory.join(TOTP_FILE)
    }

    fn restart(&mut self) {
        self.admins = Admins::open(&self.directory.join(FILE)).unwrap();
    }

    /// Sets the second factor of `admin` up. Returns the secret and the recovery codes.
    fn set_up(&self) -> (TotpSecret, Vec<RecoveryCode>) {
        let now = Instant::now();
        let secret = self.admins.begin_totp(FIRST_ADMIN, now).unwrap();
        let code = code(&secret, NOON_S);
        let codes = self.admins.confirm_totp(FIRST_ADMIN, &code, now, at(NOON_S)).unwrap();
        (secret, codes)
    }

    fn accepts(&self, code: &str, unix_s: u64) -> Option<AcceptedCode> {
        self.admins.use_code(FIRST_ADMIN, code, at(unix_s)).unwrap()
    }
}

impl Drop for TestAdmins {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.directory);
    }
}

fn at(unix_s: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(unix_s)
}

fn code(secret: &TotpSecret, unix_s: u64) -> String {
    secret.code_at(unix_s).to_string()
}

#[test]
fn factor_is_active_after_its_first_code() {
    let test = TestAdmins::new("set-up");
    let (admins, now) = (&test.admins, Instant::now());
    let confirm = |code: &str, now| admins.confirm_totp(FIRST_ADMIN, code, now, at(NOON_S));
    assert!(matches!(confirm("123456", now), Err(SetUpError::NotBegun)));
    let secret = admins.begin_totp(FIRST_ADMIN, now).unwrap();
    let right = code(&secret, NOON_S);
    assert!(matches!(confirm("12345", now), Err(SetUpError::WrongCode)));
    assert!(!admins.has_totp(FIRST_ADMIN) && !test.file().exists());
    assert!(matches!(
        confirm(&right, now + SET_UP_TIME_MAX),
        Err(SetUpError::NotBegun)
    ));
    let spaced = format!("{} {}", &right[..3], &right[3..]);
    assert_eq!(confirm(&spaced, now).unwrap().len(), RECOVERY_CODES);
    assert!(admins.has_totp(FIRST_ADMIN) && !admins.has_totp("eve"));
    assert!(matches!(admins.begin_totp(FIRST_ADMIN, now), Err(SetUpError::Active)));
    assert!(matches!(confirm(&right, now), Err(SetUpError::Active)));
    assert!(matches!(admins.begin_totp("eve", now), Err(SetUpError::Admins(_))));
}

#[test]
fn code_is_accepted_once_also_after_a_restart() {
    let mut test = TestAdmins::new("replay");
    let (secret, _) = test.set_up();
    let at_noon = code(&secret, NOON_S);
    assert_eq!(test.accepts(&at_noon, NOON_S), None, "the code of the set-up");
    let next = code(&secret, NOON_S + 30);
    assert_eq!(test.accepts(&next, NOON_S + 30), Some(AcceptedCode::Totp));
    assert_eq!(test.accepts(&next, NOON_S + 30), None);
    test.restart();
    assert_eq!(test.accepts(&next, NOON_S + 59), None);
    let later = code(&secret, NOON_S + 90);
    assert_eq!(test.accepts(&later, NOON_S + 30), None, "two periods early");
    assert_eq!(
        test.accepts(&later, NOON_S + 60),
        Some(AcceptedCode::Totp),
        "one period early"
    );
    assert_eq!(
        test.accepts(&code(&secret, NOON_S + 60), NOON_S + 60),
        None,
        "before a used code"
    );
}

#[test]
fn recovery_code_is_accepted_once_and_stored_as_a_hash() {
    let mut test = TestAdmins::new("recovery");
    let (secret, codes) = test.set_up();
    let [first, second] = [0, 1].map(|index: usize| codes[index].expose().to_owned());
    assert_eq!(first.len(), 17);
    let file = fs::read_to_string(test.file()).unwrap();
    assert!(file.contains(secret.to_base32().as_str()));
    assert!(codes.iter().all(|code| !file.contains(code.expose())));
    let typed = first.replace('-', " ").to_uppercase();
    assert_eq!(test.accepts(&typed, NOON_S), Some(AcceptedCode::Recovery));
    assert_eq!(test.accepts(&first, NOON_S), None);
    test.restart();
    assert_eq!(
        (
            test.accepts(&first, NOON_S),
            test.admins.recovery_codes_left(FIRST_ADMIN)
        ),
        (None, 9)
    );
    let renewed = test.admins.renew_recovery_codes(FIRST_ADMIN).unwrap();
    assert_eq!(test.accepts(&second, NOON_S), None);
    assert_eq!(test.accepts(renewed[9].expose(), NOON_S), Some(AcceptedCode::Recovery));
    for wrong in ["", "-", "0000000", "aaaaa-aaaaa-aaaaa", "é"] {
        assert_eq!(test.accepts(wrong, NOON_S), None, "{wrong}");
    }
    assert!(test.admins.renew_recovery_codes("eve").is_err());
}

#[cfg(unix)]
#[test]
fn file_is_readable_by_its_owner_only() {
    use std::os::unix::fs::PermissionsExt;
    let test = TestAdmins::new("mode");
    test.set_up();
    let mode = fs::metadata(test.file()).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}

#[test]
fn broken_file_prevents_the_start_and_is_not_printed() {
    let test = TestAdmins::new("broken");
    let (secret, _) = test.set_up();
    let text = fs::read_to_string(test.file()).unwrap();
    let secret = secret.to_base32();
    for broken in [
        "",
        "{}",
        "[]",
        &text.replace("last_step", "last"),
        &text.replace(secret.as_str(), "SHORT"),
        &text.replace("\"last_step\": ", &format!("\"last_step\": \"{}\", \"x\": ", &*secret)),
        &text[..text.len() / 2],
    ] {
        fs::write(test.file(), broken).unwrap();
        let error = Admins::open(&test.directory.join(FILE))
            .map(|_| ())
            .unwrap_err()
            .to_string();
        assert!(error.contains(TOTP_FILE) && error.contains("line "), "{error}");
        assert!(!error.contains(secret.as_str()), "{error}");
    }
}

#[test]
fn removal_needs_the_disk_and_changes_the_stamp() {
    let test = TestAdmins::new("remove");
    let stamp = || test.admins.credentials_stamp(FIRST_ADMIN).unwrap();
    let before = stamp();
    test.set_up();
    let during = stamp();
    assert!(during.starts_with(&before) && during != before);
    assert!(test.admins.remove_totp(FIRST_ADMIN).unwrap() && !test.admins.has_totp(FIRST_ADMIN));
    assert_eq!(stamp(), before);
    assert!(!test.admins.remove_totp(FIRST_ADMIN).unwrap());
    let (_, codes) = test.set_up();
    fs::remove_dir_all(&test.directory).unwrap();
    assert!(test.admins.remove_totp(FIRST_ADMIN).is_err() && test.admins.has_totp(FIRST_ADMIN));
    assert!(
        test.admins
            .use_code(FIRST_ADMIN, codes[0].expose(), at(NOON_S))
            .is_err()
    );
    assert_eq!(test.admins.recovery_codes_left(FIRST_ADMIN), RECOVERY_CODES);
}

#[test]
fn removal_on_the_command_line_is_reported_once() {
    let mut test = TestAdmins::new("command");
    test.set_up();
    let file = test.directory.join(FILE);
    assert!(!Admins::remove_totp_from_file(&file, "eve").unwrap());
    assert!(Admins::remove_totp_from_file(&file, FIRST_ADMIN).unwrap());
    test.restart();
    assert!(!test.admins.has_totp(FIRST_ADMIN));
    let removed = test.admins.removed_on_command_line();
    test.admins.forget_removed_on_command_line().unwrap();
    assert_eq!((removed.len(), removed[0].0.as_str()), (1, FIRST_ADMIN));
    test.restart();
    assert!(test.admins.removed_on_command_line().is_empty());
}

#[test]
fn deleted_user_leaves_no_factor_for_the_next_one() {
    let mut test = TestAdmins::new("deleted");
    test.admins.add("eve", &Role::Admin.of_server()).unwrap();
    test.set_up();
    test.admins.remove(FIRST_ADMIN).unwrap();
    test.admins.add(FIRST_ADMIN, &Role::Viewer.of_server()).unwrap();
    assert!(!test.admins.has_totp(FIRST_ADMIN));
    test.set_up();
    // As `tidewire passwd -D` does.
    let users = auth::Users::load_console(&test.directory.join(FILE)).unwrap();
    users.remove(FIRST_ADMIN).unwrap();
    users.save(&test.directory.join(FILE)).unwrap();
    test.restart();
    test.admins.add(FIRST_ADMIN, &Role::Viewer.of_server()).unwrap();
    assert!(!test.admins.has_totp(FIRST_ADMIN));
}

#[test]
fn required_steps_come_in_order() {
    let mut test = TestAdmins::new("required");
    assert_eq!(test.admins.required_step(FIRST_ADMIN), None);
    let password = test.admins.add("ada", &Role::Admin.of_server()).unwrap();
    assert_eq!(password.expose().len(), 23);
    test.restart();
    test.admins = Admins::open(&test.directory.join(FILE))
        .unwrap()
        .with_required_totp(true);
    assert_eq!(test.admins.required_step("ada"), Some(RequiredStep::Password));
    assert_eq!(test.admins.required_step(FIRST_ADMIN), Some(RequiredStep::SecondFactor));
    for other in ["key:deploy", "oidc:ada", "unknown"] {
        assert_eq!(test.admins.required_step(other), None, "{other}");
    }
    assert!(test.admins.administrators().is_empty());
    test.set_up();
    assert_eq!(test.admins.required_step(FIRST_ADMIN), None);
    assert_eq!(test.admins.administrators(), [FIRST_ADMIN]);
}
