# Installing and removing. DESTDIR= stages, PREFIX= places; uninstall removes exactly what install put there.

.PHONY: install uninstall
install: all
	install -d '$(DESTDIR)$(INCLUDEDIR)' '$(DESTDIR)$(LIBDIR)/pkgconfig' '$(DESTDIR)$(PREFIX)/bin'
	install -m 644 include/regroup.h include/regroup_quant.h include/regroup_sparse.h include/regroup_quorum.h include/regroup_diloco.h \
	    include/regroup_window.h \
	    '$(DESTDIR)$(INCLUDEDIR)/'
	install -m 644 $(STATIC) '$(DESTDIR)$(LIBDIR)/libregroup.a'
	install -m 755 $(SHARED).$(VERSION) '$(DESTDIR)$(LIBDIR)/libregroup.so.$(VERSION)'
	ln -sf libregroup.so.$(VERSION) '$(DESTDIR)$(LIBDIR)/$(SONAME)'
	ln -sf $(SONAME) '$(DESTDIR)$(LIBDIR)/libregroup.so'
	sed -e 's|@PREFIX@|$(PREFIX)|' -e 's|@LIBDIR@|$(LIBDIR)|' -e 's|@INCLUDEDIR@|$(INCLUDEDIR)|' -e 's|@VERSION@|$(VERSION)|' \
	    -e 's|@OPTIONAL_LIBS@|$(OPTIONAL_LIBS)|' \
	    regroup.pc.in > '$(DESTDIR)$(LIBDIR)/pkgconfig/regroup.pc'
	$(if $(COMMAND),install -m 755 $(COMMAND) '$(DESTDIR)$(PREFIX)/bin/regroup')
	$(if $(DESTDIR),,$(if $(filter /usr /usr/local,$(PREFIX)),-ldconfig 2>/dev/null || true))

uninstall:
	rm -f '$(DESTDIR)$(INCLUDEDIR)/regroup.h' '$(DESTDIR)$(INCLUDEDIR)/regroup_quant.h' \
	    '$(DESTDIR)$(INCLUDEDIR)/regroup_sparse.h' '$(DESTDIR)$(INCLUDEDIR)/regroup_quorum.h' '$(DESTDIR)$(INCLUDEDIR)/regroup_diloco.h' \
	    '$(DESTDIR)$(INCLUDEDIR)/regroup_window.h' \
	    '$(DESTDIR)$(LIBDIR)/libregroup.a' '$(DESTDIR)$(LIBDIR)/libregroup.so' \
	    '$(DESTDIR)$(LIBDIR)/$(SONAME)' '$(DESTDIR)$(LIBDIR)/libregroup.so.$(VERSION)' \
	    '$(DESTDIR)$(LIBDIR)/pkgconfig/regroup.pc' '$(DESTDIR)$(PREFIX)/bin/regroup'
