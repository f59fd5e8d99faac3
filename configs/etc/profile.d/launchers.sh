PATH=/opt/launchers/bin:$PATH # as in the image; /etc/profile has just set it anew
