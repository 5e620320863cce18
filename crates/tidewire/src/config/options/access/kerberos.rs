//! Options of the authentication provider `kerberos`.

use std::path::PathBuf;

use crate::config::key::KeySegment::Fixed;
use crate::config::option::section;
use crate::config::value::Unset;

section! {
    /// Authentication of MQTT 5 clients with Kerberos: the Authentication Method `GSSAPI-KERBEROS` of EMQX. It is
    /// available if `access.providers` contains `kerberos`, in builds with the feature `kerberos`. Access rules see the
    /// principal of the client as its user name. Such a client is never a superuser.
    pub struct KerberosAccess at [Fixed("access"), Fixed("kerberos")] {
        /// Principal of the server, for example `mqtt/broker.example.com@EXAMPLE.COM`. Clients need a ticket for it.
        restart principal: Unset<String> = "";
        /// Keytab with the key of the principal. The server reads it again for each login, so a new key needs no
        /// restart. The server does not start without a key. Empty: the default keytab of the Kerberos library
        /// (`KRB5_KTNAME`, or `default_keytab_name` in `krb5.conf`).
        restart keytab_file: Unset<PathBuf> = "";
        /// Whether user names are without the realm: `meter-1` instead of `meter-1@EXAMPLE.COM`. Principals of other
        /// realms than that of `principal` keep their realm. `true` if users of the server have the same names: a
        /// client has the same rights with its ticket as with its password.
        restart strip_realm: bool = "false";
        /// Disconnect a client when its ticket expires, with the reason code 0xA0 (Maximum connect time). The library
        /// adds `clockskew` of `krb5.conf`, which is 5 minutes by default. A client can send a new ticket before, in a
        /// re-authentication. `false`: a session outlives the ticket, as in EMQX.
        restart disconnect_after_expire: bool = "false";
    }
}
