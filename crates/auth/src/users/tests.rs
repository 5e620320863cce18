//! Tests of the user table and the password file.

use std::fs;
use std::path::{Path, PathBuf};

use super::*;
use crate::password::HashError;
use crate::secret::Password;

const PATH: &str = "/etc/tidewire/users";

fn hash(password: &str) -> PasswordHash {
    PasswordHash::salted_sha256("salt", &Password::new(password))
}

/// A separate directory for each test, removed afterwards.
struct TestDirectory(PathBuf);

impl TestDirectory {
    fn new(test: &str) -> TestDirectory {
        let path = std::env::temp_dir().join(format!("tidewire-auth-{test}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        TestDirectory(path)
    }
}

impl Drop for TestDirectory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn bad_lines(text: &[u8]) -> Vec<(usize, LineError)> {
    match Users::parse(Path::new(PATH), text) {
        Err(LoadError::Lines(errors)) => errors.bad_lines,
        Err(error) => panic!("{error}"),
        Ok(users) => panic!("{} users", users.len()),
    }
}

#[test]
fn mosquitto_password_file_loads() {
    let text = "# comment\n\n\
        alice:$7$101$rnq/f66IkNnx5rVe$bJ6Pa5ekifsOvEUFWLgY3PKfbQnJxGSbmynyEU7GNsyEiOIahypG9hY6X3POwVtgjvYv8CcKd8VlYChuBDZc/Q==\r\n\
        old user : $6$MJog3BoXCCEVr6Wb$lPo/qZodi0R92fiHzaSe4UjnPrgyW1NhO7mcrJ8hO7uvFqo5IQPzPcD4R5qEILtJCM7Er7mP279VWVf90jmdeg== : superuser";
    let users = Users::parse(Path::new(PATH), text.as_bytes()).unwrap();
    let names: Vec<(String, bool, &str)> = users
        .list()
        .into_iter()
        .map(|user| (user.name, user.is_superuser, user.scheme))
        .collect();
    assert_eq!(
        names,
        [
            ("alice".into(), false, "pbkdf2-sha512"),
            ("old user".into(), true, "sha512")
        ]
    );
    assert!(
        users
            .find("alice")
            .unwrap()
            .hash
            .verify(&Password::new("correct horse"))
    );
    assert!(users.find("Alice").is_none());
}

#[test]
fn bad_lines_are_all_reported_and_nothing_is_loaded() {
    let good = format!("good:{}\n", hash("x").as_str());
    let mut text = good.clone().into_bytes();
    text.extend_from_slice(b"bob:hunter2\n# fine\nno colon hunter2\ncarol:$9$x$y\n:nameless\n\xff\xfe:x\n");
    text.extend_from_slice(good.as_bytes());
    text.extend_from_slice(format!("dave:{}:admin\n", hash("x").as_str()).as_bytes());
    text.extend_from_slice(b"erin:hun:ter2\n");
    text.extend_from_slice(&vec![b'x'; 5000]);
    assert_eq!(
        bad_lines(&text),
        [
            (2, LineError::PlainText { name: "bob".into() }),
            (4, LineError::NoColon),
            (
                5,
                LineError::Hash {
                    name: "carol".into(),
                    error: HashError::UnknownScheme
                }
            ),
            (6, LineError::User(UserError::NameLength)),
            (7, LineError::NotUtf8),
            (8, LineError::Duplicate { name: "good".into() }),
            (9, LineError::Role { name: "dave".into() }),
            (10, LineError::PlainText { name: "erin".into() }),
            (11, LineError::TooLong),
        ]
    );
}

#[test]
fn errors_name_file_line_and_fix_but_no_password() {
    let Err(error) = Users::parse(Path::new(PATH), b"alice:hunter2\nbob hunter2\ncarol:$6$hunter2$x\n") else {
        panic!("loaded");
    };
    assert_eq!(
        error.to_string(),
        "/etc/tidewire/users:1: the password of user `alice` is in plain text; store its hash with: \
         tidewire passwd '/etc/tidewire/users' 'alice'\n\
         /etc/tidewire/users:2: the line is not `name:hash`\n\
         /etc/tidewire/users:3: user `carol`: the salt is not valid base64"
    );
    assert!(!format!("{error:?}").contains("hunter2"));
}

#[test]
fn role_in_a_namespace_survives_changes_of_its_user() {
    let path = std::env::temp_dir().join(format!("tidewire-namespaces-{}", std::process::id()));
    let users = Users::empty().unwrap();
    let role = UserRole::InNamespace("ns:acme::viewer".into());
    users.set_with_role("eve", hash("a"), role.clone()).unwrap();
    users.save(&path).unwrap();
    assert!(Users::load(&path).is_err(), "not a role of an MQTT user");
    let again = Users::load_console(&path).unwrap();
    again.set_password("eve", hash("c")).unwrap();
    again.restore("eve", again.snapshot("eve"));
    let copy = Users::empty().unwrap();
    again.copy_into(&copy).unwrap();
    let eve = copy.get("eve").unwrap();
    assert_eq!((eve.role, eve.is_superuser), (role, false));
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn missing_file_is_reported_with_path_and_cause() {
    let Err(error) = Users::load(Path::new("/nonexistent/users")) else {
        panic!("loaded")
    };
    assert_eq!(error.to_string(), "cannot read the password file /nonexistent/users");
    assert!(std::error::Error::source(&error).is_some());
}

#[test]
fn only_console_users_can_be_operators() {
    let path = std::env::temp_dir().join(format!("tidewire-operators-{}", std::process::id()));
    let users = Users::empty().unwrap();
    users.set_with_role("otto", hash("a"), UserRole::Operator).unwrap();
    users.set("root", hash("b"), true).unwrap();
    users.save(&path).unwrap();
    let error = Users::load(&path).err().unwrap().to_string();
    assert!(
        error.ends_with("user `otto`: only users of the console can have the role `operator`; remove the field"),
        "{error}"
    );
    let again = Users::load_console(&path).unwrap();
    let otto = again.get("otto").unwrap();
    assert_eq!((otto.role, otto.is_superuser), (UserRole::Operator, false));
    again.set_password("otto", hash("c")).unwrap();
    again.restore("otto", again.snapshot("otto"));
    assert_eq!(again.get("otto").unwrap().role, UserRole::Operator);
    assert!(again.to_file_text().contains(":operator\n"));
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn users_change_at_run_time() {
    let users = Users::empty().unwrap();
    users.add("alice", hash("a"), false).unwrap();
    assert_eq!(users.add("alice", hash("b"), true), Err(UserError::Exists));
    assert!(users.find("alice").unwrap().hash.verify(&Password::new("a")));
    users.set("alice", hash("b"), true).unwrap();
    users.set("bob", hash("c"), false).unwrap();
    users.set("carol", hash("d"), false).unwrap();
    users.set_password("alice", hash("e")).unwrap();
    assert!(users.get("alice").unwrap().is_superuser);
    users.remove("alice").unwrap();
    assert_eq!(users.remove("alice"), Err(UserError::Unknown));
    assert_eq!(users.set_password("alice", hash("x")), Err(UserError::Unknown));
    assert_eq!(users.set_superuser("alice", true), Err(UserError::Unknown));
    // The user that was moved into the gap is still found, and can be removed as well.
    assert!(users.find("carol").unwrap().hash.verify(&Password::new("d")));
    users.remove("carol").unwrap();
    let names: Vec<String> = users.list().into_iter().map(|user| user.name).collect();
    assert_eq!(names, ["bob"]);
}

#[test]
fn names_invalid_in_the_file_are_rejected() {
    let users = Users::empty().unwrap();
    for name in ["a:b", "a\nb", "#a", " a", "a ", "\0", "a\u{85}b"] {
        assert_eq!(
            users.set(name, hash("x"), false),
            Err(UserError::NameCharacter),
            "{name:?}"
        );
    }
    assert_eq!(users.set("", hash("x"), false), Err(UserError::NameLength));
    assert_eq!(
        users.set(&"x".repeat(1025), hash("x"), false),
        Err(UserError::NameLength)
    );
}

#[test]
fn saved_users_load_unchanged() {
    let directory = TestDirectory::new("round-trip");
    let path = directory.0.join("users");
    let users = Users::empty().unwrap();
    let names = ["zoë", "alice", "it's", &"x".repeat(1024), "$dollar", "a#b", "+/#"];
    for (index, name) in names.iter().enumerate() {
        users.add(name, hash(name), index % 2 == 0).unwrap();
    }
    users.save(&path).unwrap();
    let loaded = Users::load(&path).unwrap();
    assert_eq!(loaded.list(), users.list());
    for name in names {
        assert_eq!(loaded.find(name).unwrap().hash, users.find(name).unwrap().hash);
    }
    assert_eq!(loaded.to_file_text(), users.to_file_text());
}

#[cfg(unix)]
#[test]
fn save_replaces_the_file_and_retains_access() {
    use std::os::unix::fs::{MetadataExt, PermissionsExt};
    let directory = TestDirectory::new("replace");
    let (path, link) = (directory.0.join("users"), directory.0.join("link"));
    fs::write(&path, "old").unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
    // Only root can change the owner of a file.
    let is_root = std::os::unix::fs::chown(&path, Some(65534), Some(65533)).is_ok();
    let before = fs::metadata(&path).unwrap();
    assert_eq!(before.uid() == 65534, is_root);
    std::os::unix::fs::symlink(&path, &link).unwrap();
    let old_inode = fs::metadata(&path).unwrap().ino();
    let users = Users::empty().unwrap();
    users.add("alice", hash("a"), false).unwrap();
    users.save(&link).unwrap();
    let metadata = fs::metadata(&path).unwrap();
    assert_eq!(metadata.mode() & 0o777, 0o640);
    assert_eq!((metadata.uid(), metadata.gid()), (before.uid(), before.gid()));
    assert_ne!(metadata.ino(), old_inode, "replaced, not overwritten");
    assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
    let left: Vec<_> = fs::read_dir(&directory.0)
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    assert_eq!(left.len(), 2, "no temporary file remains: {left:?}");
    let new = directory.0.join("new");
    users.save(&new).unwrap();
    assert_eq!(fs::metadata(&new).unwrap().mode() & 0o777, 0o600);
}

#[test]
fn replace_returns_users_with_invalid_logins() {
    let (users, next) = (Users::empty().unwrap(), Users::empty().unwrap());
    for name in ["changed", "removed", "promoted", "same"] {
        users.add(name, hash(name), false).unwrap();
    }
    next.add("new", hash("new"), false).unwrap();
    next.add("changed", hash("other"), false).unwrap();
    next.add("promoted", hash("promoted"), true).unwrap();
    next.add("same", hash("same"), false).unwrap();
    let mut invalid = users.replace(&next);
    invalid.sort();
    assert_eq!(invalid, ["changed".into(), "removed".into()]);
    assert_eq!(users.list(), next.list());
    assert!(users.find("changed").unwrap().hash == hash("other") && users.find("removed").is_none());
}

#[test]
fn failed_save_leaves_only_the_old_file() {
    let directory = TestDirectory::new("failed-save");
    let users = Users::empty().unwrap();
    // A directory cannot be replaced by a file.
    let path = directory.0.join("users");
    fs::create_dir(&path).unwrap();
    fs::write(path.join("old"), "old").unwrap();
    users.save(&path).unwrap_err();
    assert_eq!(fs::read_dir(&directory.0).unwrap().count(), 1);
    users.save(&directory.0.join("missing/users")).unwrap_err();
    assert_eq!(fs::read_to_string(path.join("old")).unwrap(), "old");
}

#[test]
fn decoy_has_the_cost_of_users_and_is_stable() {
    let users = Users::empty().unwrap();
    assert_eq!(users.decoy_for("x").scheme_name(), "argon2id");
    for n in 0..20 {
        users.add(&format!("cheap-{n}"), hash("x"), false).unwrap();
    }
    assert_eq!(users.decoy_for("x").scheme_name(), "sha256");
    let mixed =
        PasswordHash::parse("$pbkdf2-sha256$i=1000,l=20$MDEyMzQ1Njc4OWFiY2RlZg$cBg8D2DungRB9k76szThf5ehfyA").unwrap();
    for n in 0..20 {
        users.add(&format!("dear-{n}"), mixed.clone(), false).unwrap();
    }
    let schemes: Vec<&str> = (0..64)
        .map(|n| users.decoy_for(&format!("unknown-{n}")).scheme_name())
        .collect();
    assert!(
        schemes.contains(&"sha256") && schemes.contains(&"pbkdf2-sha256"),
        "{schemes:?}"
    );
    assert_eq!(users.decoy_for("x"), users.decoy_for("x"));
}

#[test]
fn concurrent_readers_see_complete_changes() {
    let users = Users::empty().unwrap();
    users.add("alice", hash("0"), false).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for n in 0..500u32 {
                users.set("alice", hash(&n.to_string()), n % 2 == 1).unwrap();
                users.set("bob", hash("x"), false).unwrap();
                users.remove("bob").unwrap();
            }
        });
        scope.spawn(|| {
            for _ in 0..500 {
                let user = users.find("alice").expect("alice always exists");
                // Hash and role change together: the odd versions are the superuser ones.
                let version = (0..500).find(|n: &u32| user.hash == hash(&n.to_string()));
                assert_eq!(version.expect("a version that was set") % 2 == 1, user.is_superuser());
            }
        });
    });
    assert_eq!(users.len(), 1);
}
