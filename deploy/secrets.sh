#!/bin/sh
# Makes the cluster's secrets, those that are not there yet: files that only this user can reach.
set -eu
folder=${1:-secrets}
mkdir -p "$folder"
chmod 700 "$folder"
for name in postgres_password ray_token admin_token; do
    if [ ! -s "$folder/$name" ]; then
        head -c 32 /dev/urandom | od -An -tx1 | tr -d ' \n' > "$folder/$name"
        # Containers read it as other users; the folder keeps this machine's others out.
        chmod 644 "$folder/$name"
    fi
done
echo "secrets in $folder; the service's admin token: $folder/admin_token"
